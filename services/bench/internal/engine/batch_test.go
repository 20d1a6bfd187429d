package engine

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

const vocabulary = 300

// openRunner makes a runner for cfg on a sim device whose steps take no time; everything is closed
// when the test ends.
func openRunner(t *testing.T, cfg playConfig) engine.Runner {
	t.Helper()
	var bytes bytes.Buffer
	shape := synth.Shape{Architecture: "llama", Desc: engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, FFN: 64, Vocab: vocabulary}}
	require.NoError(t, synth.Write(&bytes, shape, synth.Only(gguf.Q8_0), 1))
	file, err := gguf.Parse(bytes.Bytes())
	require.NoError(t, err)
	spec, err := arch.Parse(file)
	require.NoError(t, err)
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	model, err := bindModel(t.Context(), device, file, spec)
	require.NoError(t, err)
	runner, err := model.NewRunner(cfg.Runner())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, runner.Close())
		require.NoError(t, model.Close())
		require.NoError(t, device.Close())
	})
	return runner
}

func config(prompt, tokens, batch, depth int) playConfig {
	return playConfig{
		Prompt: prompt, Tokens: tokens, Batch: batch, Vocabulary: vocabulary, Seed: 5, KVType: engine.F32, Depth: depth, StepTokens: 512,
	}
}

// play gives copies of the tokens.
func play(t *testing.T, cfg playConfig, batch int) (prefill, decode phase, tokens [][]int32) {
	t.Helper()
	prefill, decode, tokens, err := newBatchPlayer(cfg, openRunner(t, cfg)).Play(t.Context(), batch)
	require.NoError(t, err)
	for i := range tokens {
		tokens[i] = slices.Clone(tokens[i])
	}
	return prefill, decode, tokens
}

func TestTokensDoNotDependOnBatchOrDepth(t *testing.T) {
	_, _, alone := play(t, config(70, 20, 1, 1), 1)
	require.Len(t, alone[0], 20)
	for name, cfg := range map[string]playConfig{
		"batch 8":               config(70, 20, 8, 1),
		"batch 8, depth 2":      config(70, 20, 8, 2),
		"prompts over 2 steps":  config(70, 20, 16, 1),
		"a bigger runner alone": config(70, 20, 16, 2),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, got := play(t, cfg, cfg.Batch)
			require.Equal(t, alone[0], got[0])
			require.NotEqual(t, got[0], got[1], "other prompts give other tokens")
		})
	}
}

func TestPhasesCountPositionsAndSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		prompt, tokens, batch, depth int
		prefillSteps                 int
	}{
		"one":                        {128, 8, 1, 1, 1},
		"four fill a step":           {128, 8, 4, 2, 1},
		"five need two steps":        {128, 8, 5, 1, 2},
		"a prompt longer than steps": {1100, 2, 2, 1, 5},
	} {
		t.Run(name, func(t *testing.T) {
			prefill, decode, _ := play(t, config(tc.prompt, tc.tokens, tc.batch, tc.depth), tc.batch)
			require.Equal(t, tc.prompt*tc.batch, prefill.Positions)
			require.Equal(t, tc.batch, prefill.Samples)
			require.Equal(t, tc.prefillSteps, prefill.Steps)
			require.Equal(t, (tc.tokens-1)*tc.batch, decode.Positions)
			require.Equal(t, (tc.tokens-1)*tc.batch, decode.Samples)
			require.Equal(t, tc.tokens-1, decode.Steps)
			require.Positive(t, decode.Bytes)
			require.Positive(t, decode.Time)
			require.Positive(t, prefill.Time)
		})
	}
}

func TestSecondPlayStartsFromScratch(t *testing.T) {
	cfg := config(40, 12, 4, 2)
	g := newBatchPlayer(cfg, openRunner(t, cfg))
	_, _, first, err := g.Play(t.Context(), 4)
	require.NoError(t, err)
	want := slices.Clone(first[2])
	for _, batch := range []int{3, 4} {
		_, _, again, err := g.Play(t.Context(), batch)
		require.NoError(t, err)
		require.Len(t, again, batch)
		require.Equal(t, want, again[2])
	}
}

func TestCancelledContextStopsThePlay(t *testing.T) {
	cfg := config(4, 4, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err := newBatchPlayer(cfg, openRunner(t, cfg)).Play(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
}

func TestRowWithoutATokenIsAnError(t *testing.T) {
	cfg := config(4, 4, 2, 1)
	runner := openRunner(t, cfg)
	require.NoError(t, runner.(engine.Faulter).Fault(engine.FaultNaNLogits, 1, 0))
	_, _, _, err := newBatchPlayer(cfg, runner).Play(t.Context(), 2)
	require.ErrorIs(t, err, errRow)
	require.ErrorContains(t, err, "sequence 1")
}

func TestPromptsDependOnSeedAndSequence(t *testing.T) {
	a := randomPrompt(1, 0, 100, 50)
	require.Equal(t, a, randomPrompt(1, 0, 100, 50))
	require.Equal(t, a[:10], randomPrompt(1, 0, 10, 50), "a shorter one is its beginning")
	require.NotEqual(t, a, randomPrompt(2, 0, 100, 50))
	require.NotEqual(t, a, randomPrompt(1, 1, 100, 50))
	require.Less(t, slices.Max(a), int32(50))
	require.GreaterOrEqual(t, slices.Min(a), int32(0))
}

func TestDigestOfLittleEndianIds(t *testing.T) {
	require.Len(t, digestTokens(nil), 64)
	sum := blake3.Sum256([]byte{1, 0, 0, 0, 2, 0, 0, 0})
	require.Equal(t, hex.EncodeToString(sum[:]), digestTokens([]int32{1, 2}))
	require.NotEqual(t, digestTokens([]int32{1, 2}), digestTokens([]int32{2, 1}))
	require.NotEqual(t, digestTokens([]int32{1}), digestTokens([]int32{1, 0}))
}
