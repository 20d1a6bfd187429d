package enginetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// tinyModel is a shape with random weights of one type, small enough that a hundred of them take seconds.
type tinyModel struct {
	desc    engine.ModelDesc
	weights engine.Type
}

// tinyReference is what a tiny model is judged by.
type tinyReference struct {
	weights  *reference.Weights
	prompt   []int32
	logprobs [][]float64 // of every position of the prompt
}

var tinyReferences kept[tinyModel, *tinyReference]

func (m tinyModel) reference() (*tinyReference, error) {
	return tinyReferences.get(m, func() (*tinyReference, error) {
		out := &tinyReference{
			weights: Random(m.desc, all(m.weights), uint64(m.desc.HeadDim)),
			prompt:  numbers(7, min(21, m.desc.Context), m.desc.Vocab),
		}
		d, err := reference.NewDecoder(out.weights)
		if err != nil {
			return nil, err
		}
		for _, logits := range d.NewSequence().Append(out.prompt) {
			out.logprobs = append(out.logprobs, reference.LogSoftmax(logits))
		}
		return out, nil
	})
}

// caches are the types of keys and values that an engine has.
func (o Options) caches() []engine.Type {
	if o.Cache != engine.F32 {
		return []engine.Type{o.Cache}
	}
	return []engine.Type{engine.F32, engine.F16, engine.BF16}
}

// check loads the model and holds every type of cache to the reference, at once, in chunks and token by token.
func (m tinyModel) check(t *testing.T, dev engine.Device, opts Options) {
	t.Helper()
	want, err := m.reference()
	require.NoError(t, err)
	model := Load(t, dev, want.weights)
	for _, kv := range opts.caches() {
		m.checkCache(t, model, want, kv, opts)
	}
}

func (m tinyModel) checkCache(t *testing.T, model engine.Model, want *tinyReference, kv engine.Type, opts Options) {
	t.Helper()
	n := len(want.prompt)
	tokens := min(3, m.desc.Context-n+1)
	cfg := engine.RunnerConfig{
		KVBlocks: 2 * ((n+tokens)/16 + 1), BlockSize: 16, MaxSequences: 2, MaxBatchedTokens: max(n, 2), MaxSampleRows: 2,
		MaxScoreRows: n, MaxTopN: 4, KVType: kv,
	}
	r, err := model.NewRunner(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	p := Plain(5, 0.7)
	p.TopN = 4
	request := Request{Prompt: want.prompt, Tokens: tokens, Params: p, Score: true}
	play := func(what string, change func(*Request)) Output {
		t.Helper()
		q := request
		change(&q)
		out, err := PlayOn(r, cfg, q)
		require.NoError(t, err, what)
		if opts.Numeric {
			m.judge(t, fmt.Sprintf("cache of type %d, %s", kv, what), out[0], want, want.within(kv, opts))
		}
		return out[0]
	}
	whole := play("at once", func(*Request) {})
	require.Len(t, whole.Tokens, tokens)
	for _, chunk := range []int{5, 1} {
		chunked := play(fmt.Sprintf("in chunks of %d", chunk), func(q *Request) { q.Chunk, q.Slot = chunk, 1 })
		require.NoError(t, whole.equal(chunked), "cache of type %d: at once and in chunks of %d", kv, chunk)
	}
	decoded := play("by decode kernels", func(q *Request) { q.Class, q.Chunk = engine.Decode, 1 })
	together := play("by decode kernels, six at once", func(q *Request) { q.Class, q.Chunk, q.Slot = engine.Decode, 6, 1 })
	require.NoError(t, decoded.equal(together), "cache of type %d: decoded one and six at a time", kv)
	if opts.OneClass {
		require.NoError(t, whole.equal(decoded), "cache of type %d: by the kernels of prompts and of decoding", kv)
	}
}

// within is the tolerance of the model's logprobs with a type of cache on an engine. Where values are rounded, sums of few
// terms average less of it away than those of the families do: errors are up to three times theirs.
func (w *tinyReference) within(kv engine.Type, opts Options) tolerance {
	f := family{weights: w.weights, kv: kv, within: exact}
	weights := w.weights.Tensors[0].Type // of the embedding, as of all matrices
	if block, _ := rules.BlockOf(weights); block.Elements > 1 && opts.Activations[weights] == engine.F32 {
		f.within = int8s
	}
	switch kv {
	case engine.F16:
		f.within = tolerance{max(f.within.rms, halfCache.rms), max(f.within.max, halfCache.max)}
	case engine.BF16:
		f.within = tolerance{max(f.within.rms, bf16Cache.rms), max(f.within.max, bf16Cache.max)}
	default: // as exact as activations
	}
	within := f.on(opts)
	if within == exact {
		return within
	}
	return tolerance{3 * within.rms, 3 * within.max}
}

// judge compares every logprob of a prompt with the reference.
func (m tinyModel) judge(t *testing.T, what string, got Output, want *tinyReference, within tolerance) {
	t.Helper()
	require.Len(t, got.Scores, len(want.prompt)-1, what)
	sum, n := 0.0, 0
	for i, row := range got.Scores {
		require.Equal(t, engine.RowOK, row.Status, what)
		require.Len(t, row.Candidates, min(4, m.desc.Vocab), what)
		pairs := append([]engine.Candidate{{Token: want.prompt[i+1], Logprob: row.Logprob}}, row.Candidates...)
		for _, c := range pairs {
			e := math.Abs(float64(c.Logprob) - want.logprobs[i][c.Token])
			require.LessOrEqual(t, e, within.max, "%s: position %d, token %d", what, i, c.Token)
			sum, n = sum+e*e, n+1
		}
	}
	if n > 0 {
		require.LessOrEqual(t, math.Sqrt(sum/float64(n)), within.rms, "%s: rms", what)
	}
}
