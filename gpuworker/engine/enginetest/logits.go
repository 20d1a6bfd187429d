package enginetest

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// tolerance bounds the error of a raw logprob: the root of the mean square over a prompt, and the
// largest.
type tolerance struct{ rms, max float64 }

// Activations in f32 leave only the order of sums; int8 activations and narrow caches round every
// value they touch, by 1/254 of a block's largest and by half a unit of 11 or 8 bits. Random
// weights add these up without the redundancy of trained ones: perplexity is the sharper test of a
// quantised model, and products are of its kernels.
var (
	exact     = tolerance{5e-6, 3e-5}
	states    = tolerance{1e-5, 1e-4} // a state carries the rounding errors of earlier positions
	int8s     = tolerance{1e-1, 5e-1}
	int8Mins  = tolerance{2.5e-1, 1.2} // weights with minimums: rounding errors multiply a range that begins at zero
	halfCache = tolerance{1e-3, 5e-3}
	bf16Cache = tolerance{8e-3, 4e-2}

	activationsIn = map[engine.Type]tolerance{engine.F16: {2e-3, 1e-2}, engine.BF16: {1.6e-2, 8e-2}}
)

// on is the tolerance of a family on an engine: it rounds no less than the least exact of its
// products.
func (f family) on(opts Options) tolerance {
	within := f.within
	if f.kv != engine.F32 && opts.Cache != engine.F32 { // queries, keys and values are of that type, and what products read may be
		within = tolerance{max(within.rms, activationsIn[f.kv].rms), max(within.max, activationsIn[f.kv].max)}
	}
	for i := range f.weights.Tensors {
		if more, ok := activationsIn[opts.Activations[f.weights.Tensors[i].Type]]; ok && len(f.weights.Tensors[i].Dims) > 1 {
			within = tolerance{max(within.rms, more.rms), max(within.max, more.max)}
		}
	}
	if opts.RoundedWeights {
		within = tolerance{within.rms * 1.5, within.max * 1.5}
	}
	return within
}

// mixture returns the description with experts in all of its layers but the first.
func mixture(d engine.ModelDesc, count, used int) engine.ModelDesc {
	for i := range d.Layers[1:] {
		d.Layers[1+i].MLP.Kind, d.Layers[1+i].MLP.Experts = engine.MLPExperts, engine.Experts{Count: count, Used: used, Renorm: true}
	}
	return d
}

// chosenByBiases returns random weights in which biases choose every third expert.
func chosenByBiases(d engine.ModelDesc, seed uint64) *reference.Weights {
	for i := range d.Layers {
		d.Layers[i].MLP.Experts.ChoiceBias = d.Layers[i].MLP.Experts.Count > 0
	}
	w := Random(d, all(engine.F32), seed)
	for _, tensor := range w.Tensors {
		for i := 0; tensor.Role == engine.RoleChoiceBias && i < len(tensor.Bytes)/4; i++ {
			putFloat(tensor.Bytes, i, float64(10*(i%3)))
		}
	}
	return w
}

// likeQueries returns the weights with the keys of delta nets like their queries. A delta net norms
// q^T S, which at position 0 is a multiple of q^T k: near 0, a rounded activation changes its sign.
func likeQueries(w *reference.Weights) *reference.Weights {
	for _, tensor := range w.Tensors {
		if tensor.Role != engine.RoleMixIn && tensor.Role != engine.RoleMixConv {
			continue
		}
		if m := &w.Desc.Layers[tensor.Layer].Mixer; m.Kind == engine.MixDelta {
			keys := 4 * int(tensor.Dims[0]) * m.KVHeads * m.KeyDim // bytes, after those of queries
			copy(tensor.Bytes[keys:2*keys], tensor.Bytes[:keys])
		}
	}
	return w
}

// grouped turns on what the experts of published models may have.
func grouped(d engine.ModelDesc) engine.ModelDesc {
	for i := range d.Layers {
		e := &d.Layers[i].MLP.Experts
		if e.Count == 0 {
			continue
		}
		e.Gating, e.ChoiceBias, e.WeightScale = engine.GateSigmoid, true, 1.5
		e.Groups, e.GroupsUsed, e.GroupBestTwo = 2, 1, true
		if e.Used > e.Count/2 {
			e.GroupsUsed = 2
		}
		e.SharedWidth, e.SharedGate = 256, true
	}
	return d
}

// apart gives the experts and the shared expert norms of their own and scales.
func apart(d engine.ModelDesc) engine.ModelDesc {
	for i := range d.Layers {
		e := &d.Layers[i].MLP.Experts
		e.Apart, e.Scales = e.SharedWidth > 0, e.Count > 0
	}
	return d
}

// gptOSS has the blocks of gpt-oss. All of its experts are used, because int8 activations could choose others.
func gptOSS() engine.ModelDesc {
	shape := Small()
	shape.Hidden, shape.FFN, shape.Layers, shape.QKVBias, shape.OBias = 96, 64, 3, true, true
	d := shape.Model()
	for i := range d.Layers {
		l := &d.Layers[i]
		l.Mixer.Sinks, l.Mixer.Window = true, 16*(i%2)
		l.MLP.Kind, l.MLP.Activation = engine.MLPExperts, engine.ClampedSwish
		l.MLP.Experts = engine.Experts{Count: 4, Used: 4, Renorm: true, RouterBias: true, Bias: true}
	}
	return d
}

// numbers returns a prompt of n random ids.
func numbers(seed uint64, n, vocab int) []int32 {
	rng := generator(seed)
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocab))
	}
	return out
}

// family is a model of every kind that an engine runs.
type family struct {
	weights *reference.Weights
	kv      engine.Type
	within  tolerance
}

// keptFamilies are the families, made once. They are read-only.
var keptFamilies = sync.OnceValue(families)

// text returns the prompt of a family.
func (f family) text() []int32 { return numbers(5, 45, f.weights.Desc.Vocab) }

var familyLogprobs kept[string, [][]float64]

// logprobs returns the reference's logprobs of every position of the text, computed once for a
// name.
func (f family) logprobs(name string) ([][]float64, error) {
	return familyLogprobs.get(name, func() ([][]float64, error) {
		d, err := reference.NewDecoder(f.weights)
		if err != nil {
			return nil, err
		}
		rows := d.NewSequence().Append(f.text())
		for i := range rows {
			rows[i] = reference.LogSoftmax(rows[i])
		}
		return rows, nil
	})
}

func families() map[string]family {
	wide := func(change func(*engine.Uniform)) engine.ModelDesc { // rows of whole blocks of every type
		d := Small()
		d.Hidden, d.FFN, d.Heads, d.KVHeads, d.HeadDim, d.RopeDims = 256, 512, 8, 2, 32, 32
		if change != nil {
			change(&d)
		}
		return d.Model()
	}
	small := func(change func(*engine.Uniform)) engine.ModelDesc {
		d := Small()
		change(&d)
		return d.Model()
	}
	common := rules.WeightTypes()
	out := map[string]family{
		"llama":                                {Random(Small().Model(), all(engine.F32), 1), engine.F32, exact},
		"llama with a tied head, in f16":       {Random(small(func(d *engine.Uniform) { d.TiedHead = true }), all(engine.F16), 2), engine.F32, exact},
		"llama of one head, in bf16":           {Random(small(func(d *engine.Uniform) { d.Heads, d.KVHeads = 1, 1 }), all(engine.BF16), 3), engine.F32, exact},
		"llama without grouped heads":          {Random(small(func(d *engine.Uniform) { d.KVHeads = 6 }), all(engine.F32), 4), engine.F32, exact},
		"llama with rope factors":              {Random(small(func(d *engine.Uniform) { d.RopeFactors, d.RopeBase = true, 500_000 }), all(engine.F32), 5), engine.F32, exact},
		"llama with scaled rope over few dims": {Random(small(func(d *engine.Uniform) { d.RopeScale, d.RopeDims = 4, 12 }), all(engine.F32), 6), engine.F32, exact},
		"llama with an attention scale":        {Random(small(func(d *engine.Uniform) { d.AttnScale = 0.1 }), all(engine.F32), 7), engine.F32, exact},
		"llama with every bias":                {Random(small(func(d *engine.Uniform) { d.QKVBias, d.OBias = true, true }), all(engine.F32), 8), engine.F32, exact},
		"qwen2":                                {Random(small(func(d *engine.Uniform) { d.QKVBias, d.RopeStyle = true, engine.RopeNeox }), all(engine.F32), 9), engine.F32, exact},
		"qwen3": {Random(small(func(d *engine.Uniform) {
			d.QKNorm, d.RopeStyle, d.TiedHead, d.HeadDim, d.RopeDims, d.NormEps = true, engine.RopeNeox, true, 34, 34, 1e-6
		}), all(engine.F32), 10), engine.F32, exact},
		"with experts": {Random(mixture(Small().Model(), 8, 2), all(engine.F32), 15), engine.F32, exact},
		"with experts in groups and a shared expert": {Random(grouped(mixture(Small().Model(), 12, 3)), all(engine.F32), 16), engine.F32, exact},
		// A rounded activation could choose another expert, so all are used, or biases choose.
		"with all experts":                        {Random(mixture(Small().Model(), 8, 8), all(engine.F32), 31), engine.F32, exact},
		"with all experts of groups and a shared": {Random(grouped(mixture(Small().Model(), 12, 12)), all(engine.F32), 32), engine.F32, exact},
		"with all experts and norms of their own": {Random(apart(grouped(mixture(Small().Model(), 8, 8))), all(engine.F32), 33), engine.F32, exact},
		"with experts that biases choose":         {chosenByBiases(mixture(Small().Model(), 9, 3), 34), engine.F32, exact},
		"with experts of a type a tensor": {Random(grouped(mixture(wide(nil), 4, 4)), func(r engine.Role) engine.Type {
			if r == engine.RoleRouter {
				return engine.F32
			}
			return common[int(r)*5%len(common)]
		}, 17), engine.F32, int8Mins},
		"with experts and norms of their own": {Random(apart(grouped(mixture(Small().Model(), 8, 2))), all(engine.F32), 19), engine.F32, exact},
		"gpt-oss":                             {Random(gptOSS(), withMXFP4(all(engine.F32)), 18), engine.F32, int8s},
		"with states":                         {likeQueries(Random(Hybrid(), all(engine.F32), 70)), engine.F32, states},
		"with states and experts":             {likeQueries(Random(mixture(Hybrid(), 8, 2), all(engine.F32), 71)), engine.F32, states},
		"with latents":                        {Random(Latents(), all(engine.F32), 73), engine.F32, exact},
		"with latents and experts":            {Random(grouped(mixture(Latents(), 8, 2)), all(engine.F32), 74), engine.F32, exact},
		"with latents in f16":                 {Random(Latents(), all(engine.F32), 75), engine.F16, halfCache},
		"with latents of a type a tensor": {Random(wideLatents(wide(nil)), func(r engine.Role) engine.Type {
			return common[int(r)*5%len(common)]
		}, 76), engine.F32, int8Mins},
		"with an output gate":  {Random(outputGates(), all(engine.F32), 72), engine.F32, exact},
		"with a cache in f16":  {Random(Small().Model(), all(engine.F32), 11), engine.F16, halfCache},
		"with a cache in bf16": {Random(Small().Model(), all(engine.F32), 12), engine.BF16, bf16Cache},
		"with a type a tensor": {Random(wide(nil), func(r engine.Role) engine.Type {
			return common[int(r)*7%len(common)]
		}, 14), engine.F32, int8Mins},
	}
	for i, weights := range []engine.Type{engine.F16, engine.Q8_0, engine.Q4_K} {
		within := int8s
		if weights == engine.F16 {
			within = exact
		}
		out[fmt.Sprintf("of large activations, in type %d", weights)] = family{largeActivations(wide(nil), weights, 50+uint64(i)), engine.F32, within}
	}
	for _, weights := range rules.WeightTypes() {
		within := int8s
		if _, ok := quantBytes[weights]; ok {
			within = int8Mins
		}
		if block, _ := rules.BlockOf(weights); block.Elements == 1 {
			within = exact
		}
		out[fmt.Sprintf("of type %d", weights)] = family{Random(wide(func(d *engine.Uniform) { d.TiedHead = true }), all(weights), 20+uint64(weights)), engine.F32, within}
	}
	return out
}

// drift collects errors of logprobs.
type drift struct {
	squares, worst float64
	n              int
}

func (d *drift) add(t *testing.T, got float32, want float64) {
	t.Helper()
	e := math.Abs(float64(got) - want)
	require.False(t, math.IsNaN(e), "a logprob is not a number")
	d.squares, d.worst, d.n = d.squares+e*e, math.Max(d.worst, e), d.n+1
}

// found returns the errors so far.
func (d *drift) found() tolerance { return tolerance{math.Sqrt(d.squares / float64(d.n)), d.worst} }

// errorOf compares the raw logprobs of every position with the reference.
func errorOf(t *testing.T, dev engine.Device, name string, class engine.KernelClass, chunk int, within tolerance) tolerance {
	t.Helper()
	f := keptFamilies()[name]
	tokens := f.text()
	want, err := f.logprobs(name)
	require.NoError(t, err)
	m := Load(t, dev, f.weights)
	cfg := Sizes()
	cfg.KVType = f.kv
	p := Plain(1, 0)
	p.TopN = 16
	out, err := Play(m, cfg, Request{Prompt: tokens, Params: p, Score: true, Chunk: chunk, Class: class})
	require.NoError(t, err)
	require.Len(t, out[0].Scores, len(tokens)-1)
	var errors drift
	for i, row := range out[0].Scores {
		logprobs := want[i]
		errors.add(t, row.Logprob, logprobs[tokens[i+1]])
		require.Len(t, row.Candidates, 16)
		least := math.Inf(1)
		for _, c := range row.Candidates {
			errors.add(t, c.Logprob, logprobs[c.Token])
			least = math.Min(least, logprobs[c.Token])
		}
		better := 0
		for _, v := range logprobs {
			if v > least+2*within.max {
				better++
			}
		}
		require.Less(t, better, 16, "position %d: the candidates are the best", i)
	}
	return errors.found()
}

func testLogits(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	for name, f := range keptFamilies() {
		if opts.flips(f.weights) {
			continue
		}
		for class, chunk := range map[engine.KernelClass]int{engine.Prefill: 0, engine.Decode: 1} {
			t.Run(fmt.Sprintf("%s, class %d", name, class), func(t *testing.T) {
				dev := open(t, opener)
				skipUnbuilt(t, dev, &f.weights.Desc)
				within := f.on(opts)
				got := errorOf(t, dev, name, class, chunk, within)
				t.Logf("error of a logprob: rms %.2g, largest %.2g", got.rms, got.max)
				require.LessOrEqual(t, got.rms, within.rms)
				require.LessOrEqual(t, got.max, within.max)
			})
		}
	}
}
