package engine

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// mixture is a shape of one layer, so that a token's row depends on no other token's experts.
func mixture(t *testing.T, experts, used uint32) synth.Shape {
	t.Helper()
	s, ok := synth.Small("qwen3moe")
	require.True(t, ok)
	family := *s.Family
	family.Keys = maps.Clone(family.Keys)
	maps.Copy(family.Keys, map[string]any{
		"block_count": uint32(1), "embedding_length": uint32(320), "vocab_size": uint32(2000), "expert_count": experts, "expert_used_count": used,
	})
	s.Family = &family
	return s
}

// loads returns the share of tokens that use each expert on the CPU engine, largest first. An expert
// whose output is not a number fails the rows of the tokens that use it.
func loads(t *testing.T, shape synth.Shape, experts int) []float64 {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, synth.Write(&data, shape, synth.Only(gguf.F32), 1))
	file, err := gguf.Parse(data.Bytes())
	require.NoError(t, err)
	spec, err := arch.Parse(file)
	require.NoError(t, err)
	device, err := native.Open(native.Options{Device: "cpu"}, hclog.NewNullLogger())
	require.NoError(t, err)
	defer func() { require.NoError(t, device.Close()) }()
	down, ok := file.Tensor("blk.0.ffn_down_exps.weight")
	require.True(t, ok)
	out := make([]float64, experts)
	for e := range out {
		first := file.Bytes(down)[int(down.Size)/experts*e:]
		was := binary.LittleEndian.Uint32(first)
		binary.LittleEndian.PutUint32(first, math.Float32bits(float32(math.NaN())))
		out[e] = failedShare(t, device, file, spec)
		binary.LittleEndian.PutUint32(first, was)
	}
	slices.SortFunc(out, func(a, b float64) int { return int(math.Copysign(1, b-a)) })
	return out
}

// failedShare returns the share of tokens whose rows are not numbers.
func failedShare(t *testing.T, device engine.Device, file *gguf.File, spec *arch.Model) float64 {
	t.Helper()
	const prompts, tokens, block = 4, 250, 16
	model, err := bindModel(t.Context(), device, file, spec)
	require.NoError(t, err)
	defer func() { require.NoError(t, model.Close()) }()
	runner, err := model.NewRunner(engine.RunnerConfig{
		KVBlocks: tokens/block + 1, BlockSize: block, MaxSequences: 1, MaxBatchedTokens: tokens, MaxScoreRows: tokens, MaxSampleRows: 1, KVType: engine.F32,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, runner.Close()) }()
	failed := 0
	for i := range prompts {
		step := &engine.Step{
			PreOps:   []engine.PreOp{{SlotGeneration: uint32(i + 1), Params: &engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}}},
			Segments: []engine.Segment{{SlotGeneration: uint32(i + 1), Tokens: randomPrompt(9, i, tokens, spec.Desc.Vocab)}},
		}
		for b := range tokens/block + 1 {
			step.Segments[0].Blocks = append(step.Segments[0].Blocks, int32(b))
		}
		for token := range tokens {
			step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: int32(token)})
		}
		require.NoError(t, runner.Submit(step))
		result, err := runner.Wait(time.Minute)
		require.NoError(t, err)
		for _, row := range result.Scores {
			if row.Status == engine.RowNaN {
				failed++
			}
		}
	}
	return float64(failed) / (prompts * tokens)
}

func TestSkewedRoutersChooseByZipf(t *testing.T) {
	const experts, used = 32, 4
	even, share, err := mixture(t, experts, used).Skewed(0)
	require.NoError(t, err)
	require.Equal(t, 1.0/experts, share)
	got := loads(t, even, experts)
	require.Less(t, got[0], 2.5*used/experts, "even choices: %.3f", got)

	skewed, share, err := mixture(t, experts, used).Skewed(1)
	require.NoError(t, err)
	require.InDelta(t, 0.45/used, share, 1e-9, "the law alone gives 99 % of the tokens to the first")
	got = loads(t, skewed, experts)
	require.InEpsilon(t, share*used, got[0], 0.2, "of the most loaded expert: %.3f", got)
	// After the first ranks, which are bounded, the use falls as 1.21/rank.
	for _, ranks := range [][2]int{{4, 8}, {8, 16}, {16, 32}} {
		var sum, want float64
		for rank := ranks[0]; rank < ranks[1]; rank++ {
			sum, want = sum+got[rank-1], want+1/float64(rank)
		}
		require.InEpsilon(t, 1.21*want, sum, 0.3, "ranks %v: %.3f", ranks, got)
	}
}
