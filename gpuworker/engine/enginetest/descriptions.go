package enginetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Description returns a random legal description of 1 to 4 layers, in which layers differ in heads,
// windows, rotations, norms and activations. The same seed gives the same description.
func Description(seed uint64) engine.ModelDesc {
	g := describer{generator(seed ^ 0x64657363)}
	d := engine.ModelDesc{
		Hidden: 4 + g.rng.IntN(60), Vocab: 20 + g.rng.IntN(80), Context: 512, NormEps: 1e-5, TiedHead: g.one(2),
		EmbeddingScale: g.scale(0.5, 4), ResidualScale: g.scale(0.2, 1), LogitScale: g.scale(0.2, 2), LogitCap: g.scale(5, 40),
	}
	for range 1 + g.rng.IntN(3) {
		d.Ropes = append(d.Ropes, g.rope())
	}
	if g.one(4) {
		d.LayerInputWidth = 1 + g.rng.IntN(40)
	}
	for range 1 + g.rng.IntN(4) {
		d.Layers = append(d.Layers, g.layer(&d))
	}
	if g := (describer{generator(seed ^ 0x657870)}); g.one(4) {
		g.mixtures(&d)
	}
	if g := (describer{generator(seed ^ 0x73696e6b)}); g.one(6) {
		for i := range d.Layers {
			d.Layers[i].Mixer.Sinks = g.one(2)
		}
	}
	if g := (describer{generator(seed ^ 0x67617465)}); g.one(5) {
		for i := range d.Layers {
			m := &d.Layers[i].Mixer
			m.OutGate = !m.QKRowNorm && g.one(2)
		}
	}
	if g := (describer{generator(seed ^ 0x7374617465)}); g.one(3) {
		g.states(&d)
	}
	if g := (describer{generator(seed ^ 0x6c6174656e74)}); g.one(4) {
		g.latents(&d)
	}
	return d
}

// states lets layers carry states, except one, and those that share keys.
func (g describer) states(d *engine.ModelDesc) {
	kept := g.rng.IntN(len(d.Layers))
	for i := range d.Layers {
		shared := d.Layers[i].Mixer.KVLayer > 0 || slices.ContainsFunc(d.Layers, func(l engine.Layer) bool { return l.Mixer.KVLayer > 0 })
		if i == kept || shared || g.one(3) {
			continue
		}
		m := engine.Mixer{Kind: engine.MixConv, Rope: engine.NoRope, Conv: 2 + g.rng.IntN(5), EndNorm: g.one(2)}
		if !g.one(3) {
			groups := [][2]int{{1, 1}, {2, 1}, {4, 2}, {6, 3}, {3, 3}}[g.rng.IntN(5)]
			dims := []int{3, 8, 17, 32, 48, 80}
			m.Kind, m.Heads, m.KVHeads, m.TiledHeads = engine.MixDelta, groups[0], groups[1], g.one(2)
			m.KeyDim, m.ValueDim, m.Scale = dims[g.rng.IntN(6)], dims[g.rng.IntN(6)], g.scale(0.1, 0.5)
		}
		d.Layers[i].Mixer = m
	}
}

// mixtures gives every second layer experts.
func (g describer) mixtures(d *engine.ModelDesc) {
	for i := range d.Layers {
		if !g.one(2) {
			continue
		}
		e := engine.Experts{
			Count: 1 + g.rng.IntN(12), Gating: engine.Gating(g.rng.IntN(2)), ChoiceBias: g.one(2), Renorm: g.one(2), WeightScale: g.scale(0.5, 3),
		}
		if g.one(3) {
			e.Groups = 1 + g.rng.IntN(3)
			e.Count *= e.Groups
			e.GroupsUsed, e.GroupBestTwo = 1+g.rng.IntN(e.Groups), g.one(2)
		}
		e.Used = 1 + g.rng.IntN(e.Count/max(e.Groups, 1)*max(e.GroupsUsed, 1))
		if g.one(2) {
			e.SharedWidth, e.SharedGate = 1+g.rng.IntN(70), g.one(2)
		}
		e.RouterBias, e.Bias, e.Scales = g.one(3), g.one(3), g.one(3)
		if e.SharedWidth > 0 && g.one(3) {
			e.Apart, d.Layers[i].MLP.NoNorm = true, false
		}
		if g.one(3) {
			d.Layers[i].MLP.Activation = engine.ClampedSwish
		}
		d.Layers[i].MLP.Kind, d.Layers[i].MLP.Experts = engine.MLPExperts, e
	}
}

// describer draws the parts of a description.
type describer struct{ rng *rand.Rand }

func (g describer) one(of int) bool { return g.rng.IntN(of) == 0 }

// scale returns a number from low to high, or 0 in two of three cases.
func (g describer) scale(low, high float32) float32 {
	if !g.one(3) {
		return 0
	}
	return low + (high-low)*g.rng.Float32()
}

func (g describer) rope() engine.Rope {
	r := engine.Rope{
		Dims: 2 * g.rng.IntN(5), Style: engine.RopeStyle(g.rng.IntN(2)), Base: []float32{100, 1e4, 1e6}[g.rng.IntN(3)],
		Scale: []float32{1, 1, 4}[g.rng.IntN(3)], Magnitude: g.scale(0.8, 1.3),
	}
	if g.one(2) {
		for range r.Dims / 2 {
			divisor := 1 + 7*g.rng.Float64()
			if g.one(5) {
				divisor = math.Inf(1)
			}
			r.Divisors = append(r.Divisors, divisor)
		}
	}
	return r
}

func (g describer) layer(d *engine.ModelDesc) engine.Layer {
	groups := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 1}, {3, 3}, {8, 1}}[g.rng.IntN(6)]
	dim := []int{8, 9, 16, 20, 32, 64, 80}[g.rng.IntN(7)]
	m := engine.Mixer{
		Kind: engine.MixAttention, Heads: groups[0], KVHeads: groups[1], KeyDim: dim, ValueDim: dim,
		Rope: g.rng.IntN(len(d.Ropes)+1) - 1, Window: []int{0, 0, 0, 1, 5, 16, 255, 256, 257}[g.rng.IntN(9)],
		Scale: g.scale(0.1, 0.5), ScoreCap: g.scale(2, 30),
		QKVBias: g.one(4), OutBias: g.one(4), VNorm: g.one(4), ValueIsKey: g.one(5), EndNorm: g.one(2),
	}
	switch g.rng.IntN(3) {
	case 0:
		m.QKNorm = true
	case 1:
		m.QKRowNorm = true
	}
	if g.one(4) {
		m.TemperatureScale, m.TemperatureLength = 0.1+0.4*g.rng.Float32(), []int{1, 7, 64, 512}[g.rng.IntN(4)]
	}
	// Without a norm before it, a branch has norms of Q and K and after it, as in published models.
	m.NoNorm = m.EndNorm && (m.QKNorm || m.QKRowNorm) && g.one(2)
	if n := len(d.Layers); n > 0 && g.one(4) {
		g.share(&m, d, n)
	}
	mlp := engine.MLP{
		Kind: engine.MLPDense, Activation: engine.Activation(g.rng.IntN(2)), Width: 1 + g.rng.IntN(90), EndNorm: g.one(2),
	}
	mlp.NoNorm = mlp.EndNorm && g.one(2)
	return engine.Layer{Mixer: m, MLP: mlp, OutputScale: g.one(4)}
}

// share lets layer n read the keys of a layer below it that has its own.
func (g describer) share(m *engine.Mixer, d *engine.ModelDesc, n int) {
	back := 1 + g.rng.IntN(n)
	of := &d.Layers[n-back].Mixer
	if of.KVLayer != 0 {
		return
	}
	m.KVLayer, m.Heads, m.KVHeads, m.KeyDim, m.ValueDim = back, of.Heads, of.KVHeads, of.KeyDim, of.ValueDim
	m.ValueIsKey, m.VNorm = false, false
}

// descriptionsVariable names the variable of the environment that says how many descriptions a soak
// compares.
const descriptionsVariable = "MILLRACE_DESCRIPTIONS"

// testDescriptions compares random descriptions with the reference, at once, in chunks and by
// decode kernels. A GPU may refuse blocks and shapes by name (mayRefuse). The other engines compute
// every block.
func testDescriptions(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	count := 40
	if opts.Slow || Raced || !opts.Numeric {
		count = 10
	}
	if text := os.Getenv(descriptionsVariable); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, descriptionsVariable)
		count = n
	}
	refused := 0
	for seed := range uint64(count) {
		d := Description(seed)
		require.NoError(t, rules.CheckModel(&d), "seed %d", seed)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			m, err := dev.NewModel(d)
			if errors.Is(err, engine.ErrUnsupported) {
				requireUnbuilt(t, dev, &d, err)
				require.Regexp(t, `layer \d+ has |layer_input_width is|rope 0|too little for \d+ GPUs`, err.Error(), "the block is named")
				refused++
				return
			}
			require.NoError(t, err)
			require.NoError(t, m.Close())
			// Long prompts reach over the borders of chunks of keys.
			prompt := []int{21, 40, 300}[seed%3]
			tinyModel{desc: d, weights: engine.F32, seed: seed, prompt: prompt, slack: 9}.check(t, dev, opts)
		})
	}
	t.Logf("%d of %d descriptions refused by name", refused, count)
}
