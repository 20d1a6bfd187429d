package arch_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// logprobBound is the largest difference of a logprob from llama.cpp's, in nats. Both sides compute
// in f32 or better and differ by 1e-5 at most, in gpt-oss, whose small model rotates fast, by 2e-5, and
// in gemma4, whose scores are not scaled down, by 3e-5.
// TestFamilyBoundCatchesMistakes shows what fails it.
const logprobBound = 6e-5

// prefill is how many of the ids are a prompt; the others are decoded one by one. The windows of
// the small models are shorter.
const prefill = 32

// golden is what llama.cpp computes for a model of synth.Small.
type golden struct {
	IDs  []int32
	Rows []struct {
		Position int
		Logprobs [][2]float64 // id and logprob: the five best and the worst
	}
	// Vectors are there in place of Rows if the model sees whole texts: the mean of the hidden states
	// of the first ids.
	Vectors []struct {
		Tokens int
		Mean   []float64
	}
}

// worst returns the largest difference from a decoder's numbers, over the given number of positions.
func (g *golden) worst(d *reference.Decoder, positions int) (worst float64) {
	if g.Vectors == nil {
		logits := d.NewSequence().Append(g.IDs[:positions])
		for _, row := range g.Rows {
			if row.Position >= positions {
				continue
			}
			logprobs := reference.LogSoftmax(logits[row.Position])
			for _, x := range row.Logprobs {
				worst = math.Max(worst, math.Abs(x[1]-logprobs[int(x[0])]))
			}
		}
	}
	for _, v := range g.Vectors {
		if v.Tokens <= positions {
			worst = math.Max(worst, apart(v.Mean, d.NewSequence().Hidden(g.IDs[:v.Tokens])))
		}
	}
	return worst
}

// apart returns the largest difference of a mean from that of rows.
func apart[T float32 | float64](mean []float64, rows []T) (worst float64) {
	width := len(mean)
	for i, want := range mean {
		sum := 0.0
		for at := i; at < len(rows); at += width {
			sum += float64(rows[at])
		}
		worst = math.Max(worst, math.Abs(sum/float64(len(rows)/width)-want))
	}
	return worst
}

// smallModels are the names of the small models: of each architecture, and of variants that have other
// blocks.
func smallModels() []string {
	return append(arch.Architectures(), "deepseek2-lite", "gemma4-e2b", "gemma4-experts", "mixtral")
}

func goldenOf(t *testing.T, name string) golden {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	require.NoError(t, err, "a family is compared with another implementation before it is accepted")
	var p golden
	require.NoError(t, json.Unmarshal(text, &p))
	require.Len(t, p.IDs, 96)
	require.True(t, len(p.Rows) == 18 || len(p.Vectors) == 8)
	return p
}

// smallModel returns the weights of the small model of an architecture, for a worker that serves so
// many positions; 0 = the whole context.
func smallModel(t *testing.T, name string, context int) *reference.Weights {
	t.Helper()
	shape, ok := synth.Small(name)
	require.True(t, ok, "synth has no small model of %s", name)
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.F32), 1))
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	w := &reference.Weights{Desc: m.Desc}
	if context != 0 {
		w.Desc, _ = m.Serving(context)
	}
	for _, b := range m.Bindings {
		w.Tensors = append(w.Tensors, reference.Tensor{TensorDesc: b.Desc, Bytes: f.Bytes(b.Tensor)})
	}
	return w
}

func TestFamiliesMatchLlamaCpp(t *testing.T) {
	// The reference and the CPU engine compute the logprobs of llama.cpp on the same file.
	device, err := native.Open(native.Options{Device: "cpu"}, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	compare := func(name, architecture string, context int) {
		t.Run(name, func(t *testing.T) {
			want, w := goldenOf(t, name), smallModel(t, architecture, context)
			decoder, err := reference.NewDecoder(w)
			require.NoError(t, err)
			require.LessOrEqual(t, want.worst(decoder, len(want.IDs)), logprobBound, "reference")
			for _, v := range want.Vectors {
				require.LessOrEqual(t, apart(v.Mean, states(t, device, w, want.IDs[:v.Tokens])), logprobBound, "CPU engine, %d tokens", v.Tokens)
			}
			if want.Vectors != nil {
				return
			}
			scored := score(t, device, w, want.IDs)
			for _, row := range want.Rows {
				for _, x := range row.Logprobs {
					require.InDelta(t, x[1], scored[row.Position][int32(x[0])], logprobBound, "CPU engine, position %d, token %v", row.Position, x[0])
				}
			}
		})
	}
	for _, name := range smallModels() {
		compare(name, name, 0)
	}
	compare("phi3-short", "phi3", 256) // its original context, for which it has other factors
}

// states returns the hidden states that the CPU engine gives a text.
func states(t *testing.T, device engine.Device, w *reference.Weights, ids []int32) []float32 {
	t.Helper()
	m := loaded(t, device, w)
	defer func() { require.NoError(t, m.Close()) }()
	const block = 16
	n := len(ids)
	runner, err := m.NewRunner(engine.RunnerConfig{KVBlocks: n/block + 1, BlockSize: block, MaxSequences: 1, MaxBatchedTokens: n,
		MaxSampleRows: 1, MaxHiddenRows: n, KVType: engine.F32})
	require.NoError(t, err)
	defer func() { require.NoError(t, runner.Close()) }()
	step := engine.Step{
		PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: &engine.SlotParams{PromptLength: int32(n), TopP: 1, TypicalP: 1, RepetitionPenalty: 1}}},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: ids}},
	}
	for i := range n/block + 1 {
		step.Segments[0].Blocks = append(step.Segments[0].Blocks, int32(i))
	}
	for i := range ids {
		step.Hidden = append(step.Hidden, int32(i))
	}
	require.NoError(t, runner.Submit(&step))
	result, err := runner.Wait(time.Minute)
	require.NoError(t, err)
	return slices.Clone(result.Hidden)
}

// loaded returns the model with all of its weights.
func loaded(t *testing.T, device engine.Device, w *reference.Weights) engine.Model {
	t.Helper()
	m, err := device.NewModel(w.Desc)
	require.NoError(t, err)
	for _, tensor := range w.Tensors {
		b, err := device.Alloc(uint64(len(tensor.Bytes)), engine.Staging)
		require.NoError(t, err)
		_, err = b.WriteAt(tensor.Bytes, 0)
		require.NoError(t, err)
		require.NoError(t, m.Bind(tensor.TensorDesc, b))
	}
	require.NoError(t, m.Seal())
	return m
}

// score returns the logprobs that the CPU engine gives every token after each position.
func score(t *testing.T, device engine.Device, w *reference.Weights, ids []int32) []map[int32]float64 {
	t.Helper()
	m := loaded(t, device, w)
	defer func() { require.NoError(t, m.Close()) }()
	const block = 16
	blocks := []int32{5, 0, 3, 1, 4, 2}
	vocab := w.Desc.Vocab
	runner, err := m.NewRunner(engine.RunnerConfig{KVBlocks: len(blocks), BlockSize: block, MaxSequences: 1, MaxBatchedTokens: len(ids),
		MaxSampleRows: 1, MaxScoreRows: prefill * vocab, KVType: engine.F32})
	require.NoError(t, err)
	defer func() { require.NoError(t, runner.Close()) }()
	var out []map[int32]float64
	for from := 0; from < len(ids); {
		step, n := engine.Step{}, 1
		segment := engine.Segment{SlotGeneration: 1, FirstPosition: int32(from), Class: engine.Decode}
		if from == 0 {
			n, segment.Class = prefill, engine.Prefill
			step.PreOps = []engine.PreOp{{SlotGeneration: 1, Params: &engine.SlotParams{PromptLength: prefill, TopP: 1, TypicalP: 1, RepetitionPenalty: 1}}}
		}
		segment.Tokens, segment.Blocks = ids[from:from+n], blocks[:(from+n+block-1)/block]
		step.Segments = []engine.Segment{segment}
		for i := range n * vocab {
			step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: int32(i / vocab), Target: int32(i % vocab)})
		}
		require.NoError(t, runner.Submit(&step))
		result, err := runner.Wait(time.Minute)
		require.NoError(t, err)
		for i, row := range result.Scores {
			if i%vocab == 0 {
				out = append(out, map[int32]float64{})
			}
			require.False(t, math.IsNaN(float64(row.Logprob)))
			out[len(out)-1][int32(i%vocab)] = float64(row.Logprob)
		}
		from += n
	}
	return out
}
