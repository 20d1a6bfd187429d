package enginetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// tinyModel is a shape with random weights of one type, small enough that a hundred of them take
// seconds.
type tinyModel struct {
	desc    engine.ModelDesc
	weights engine.Type
	seed    uint64
	prompt  int     // tokens
	slack   float64 // of a rounding engine's or cache's tolerance, over that of the families
}

// tinyOf returns a uniform model of few tokens.
func tinyOf(shape engine.Uniform, weights engine.Type) tinyModel {
	return tinyModel{desc: shape.Model(), weights: weights, seed: uint64(shape.HeadDim), prompt: 21, slack: 3}
}

// tinyReference has the expected logprobs of a tiny model.
type tinyReference struct {
	weights  *reference.Weights
	prompt   []int32
	logprobs [][]float64 // of every position of the prompt
	// shift is how far a logprob moves when every weight moves by a part in a million.
	shift func() (float64, error)
}

var tinyReferences kept[string, *tinyReference]

func (m tinyModel) reference() (*tinyReference, error) {
	return tinyReferences.get(fmt.Sprint(m), func() (*tinyReference, error) {
		out := &tinyReference{
			weights: Random(m.desc, all(m.weights), m.seed),
			prompt:  numbers(7, min(m.prompt, m.desc.Context), m.desc.Vocab),
		}
		var err error
		if out.logprobs, err = logprobsOf(out.weights, out.prompt); err != nil {
			return nil, err
		}
		out.shift = sync.OnceValues(func() (float64, error) {
			moved := Random(m.desc, all(m.weights), m.seed)
			move(moved, m.seed)
			logprobs, err := logprobsOf(moved, out.prompt)
			farthest := 0.0
			for i, row := range logprobs {
				for token, p := range row {
					farthest = max(farthest, math.Abs(p-out.logprobs[i][token]))
				}
			}
			return farthest, err
		})
		return out, nil
	})
}

// logprobsOf returns the logprobs behind every position of a prompt.
func logprobsOf(w *reference.Weights, prompt []int32) ([][]float64, error) {
	d, err := reference.NewDecoder(w)
	if err != nil {
		return nil, err
	}
	var out [][]float64
	for _, logits := range d.NewSequence().Append(prompt) {
		out = append(out, reference.LogSoftmax(logits))
	}
	return out, nil
}

// shiftStep is the part by which weights move to show how a model multiplies errors.
const shiftStep = 1e-6

// move multiplies every F32 weight by 1 plus a random number of the order of shiftStep.
func move(w *reference.Weights, seed uint64) {
	rng := generator(seed ^ 0x6d6f7665)
	for _, t := range w.Tensors {
		for at := 0; t.Type == engine.F32 && at < len(t.Bytes); at += 4 {
			v := float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Bytes[at:])))
			binary.LittleEndian.PutUint32(t.Bytes[at:], math.Float32bits(float32(v*(1+shiftStep*rng.NormFloat64()))))
		}
	}
}

// conditioned widens a tolerance for a model that multiplies small errors, as a norm of a few numbers near zero does: by what the
// logprobs move if every weight moves by as much as an engine with this cache rounds.
func (w *tinyReference) conditioned(t *testing.T, within tolerance, kv engine.Type) tolerance {
	t.Helper()
	shift, err := w.shift()
	require.NoError(t, err)
	rounding := map[engine.Type]float64{engine.F16: 0x1p-11, engine.BF16: 0x1p-8}[kv]
	most := shift * max(rounding/shiftStep, 1)
	return tolerance{max(within.rms, most/6), max(within.max, most)}
}

// caches are the types of keys and values that an engine has. A rounded key or value could choose another expert, which
// changes a logprob by any amount, so where experts are chosen only the exact type is compared.
func (o Options) caches(d *engine.ModelDesc) []engine.Type {
	switch {
	case o.Cache != engine.F32:
		return []engine.Type{o.Cache}
	case slices.ContainsFunc(d.Layers, func(l engine.Layer) bool { return l.MLP.Experts.Used < l.MLP.Experts.Count }):
		return []engine.Type{engine.F32}
	default:
		return []engine.Type{engine.F32, engine.F16, engine.BF16}
	}
}

// check loads the model and compares every type of cache with the reference, at once, in chunks and
// token by token.
func (m tinyModel) check(t *testing.T, dev engine.Device, opts Options) {
	t.Helper()
	want, err := m.reference()
	require.NoError(t, err)
	model := Load(t, dev, want.weights)
	for _, kv := range opts.caches(&m.desc) {
		m.checkCache(t, model, want, kv, opts)
	}
}

func (m tinyModel) checkCache(t *testing.T, model engine.Model, want *tinyReference, kv engine.Type, opts Options) {
	t.Helper()
	n := len(want.prompt)
	tokens := min(3, m.desc.Context-n+1)
	cfg := engine.RunnerConfig{
		KVBlocks: 2 * ((n+tokens)/16 + 1), BlockSize: 16, MaxSequences: 2, MaxBatchedTokens: max(n, 2), MaxSampleRows: 2,
		MaxScoreRows: n, MaxHiddenRows: n, MaxTopN: 4, KVType: kv,
	}
	p := Plain(5, 0.7)
	p.TopN = 4
	request := Request{Prompt: want.prompt, Tokens: tokens, Params: p, Score: true, Hidden: positions(n)}
	r, err := model.NewRunner(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	play := func(what string, change func(*Request)) Output {
		t.Helper()
		q := request
		change(&q)
		out, err := PlayOn(r, cfg, q)
		require.NoError(t, err, what)
		if opts.Numeric && !opts.flips(want.weights) {
			within := want.within(kv, m.slack, opts)
			if want.farthest(out[0]) > within.max {
				within = want.conditioned(t, within, kv)
			}
			m.judge(t, fmt.Sprintf("cache of type %d, %s", kv, what), out[0], want, within)
		}
		return out[0]
	}
	whole := play("at once", func(*Request) {})
	require.Len(t, whole.Tokens, tokens)
	for _, chunk := range m.chunks() {
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

// chunks returns the sizes of chunks that a prompt is run in. Those of long prompts are larger.
func (m tinyModel) chunks() []int {
	if m.prompt > 64 {
		return []int{37, 150}
	}
	return []int{5, 1}
}

// within returns the tolerance of the model's logprobs with a type of cache on an engine. In sums
// of few terms rounding errors average out less than in the families, so errors are larger by
// slack.
func (w *tinyReference) within(kv engine.Type, slack float64, opts Options) tolerance {
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
	return tolerance{slack * within.rms, slack * within.max}
}

// farthest returns the largest error of a logprob.
func (w *tinyReference) farthest(got Output) (e float64) {
	for i, row := range got.Scores {
		e = max(e, math.Abs(float64(row.Logprob)-w.logprobs[i][w.prompt[i+1]]))
		for _, c := range row.Candidates {
			e = max(e, math.Abs(float64(c.Logprob)-w.logprobs[i][c.Token]))
		}
	}
	return e
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
