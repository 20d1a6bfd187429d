package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Latents is a model of attention over latents, of odd sizes: with a latent of queries, without
// one, and with an attention of another kind between.
func Latents() engine.ModelDesc {
	shape := Small()
	shape.Layers = 3
	d := shape.Model()
	d.Ropes = append(d.Ropes, engine.Rope{Dims: 10, Base: 1e4, Scale: 1, Magnitude: 1.1}, engine.Rope{Dims: 6, Style: engine.RopeNeox, Base: 100, Scale: 2})
	d.Layers[0].Mixer = engine.Mixer{
		Kind: engine.MixLatent, Heads: 7, KVHeads: 1, KeyDim: 31, ValueDim: 19, Rope: 1, Latent: 37, QueryLatent: 43, Scale: 0.2,
	}
	d.Layers[2].Mixer = engine.Mixer{
		Kind: engine.MixLatent, Heads: 10, KVHeads: 1, KeyDim: 22, ValueDim: 34, Rope: 2, Latent: 26, EndNorm: true,
	}
	return d
}

// latentOf is a model of one layer of attention over a latent.
func latentOf(hidden, context, rotated int, m engine.Mixer) engine.ModelDesc {
	d := engine.Uniform{
		Layers: 1, Hidden: hidden, Heads: 1, KVHeads: 1, HeadDim: 2, FFN: 16, Vocab: 37, Context: context, RopeDims: rotated,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}.Model()
	m.Kind, m.KVHeads = engine.MixLatent, 1
	d.Layers[0].Mixer = m
	return d
}

// wideQueries is a model whose queries of latents are so wide that prompts are computed in pieces.
func wideQueries() engine.ModelDesc {
	return latentOf(96, 120, 4, engine.Mixer{Heads: 64, KeyDim: 12, ValueDim: 4, Latent: 4096})
}

// wideLatents gives a model attention over latents whose matrices have rows of whole blocks of
// every type.
func wideLatents(d engine.ModelDesc) engine.ModelDesc {
	for i := range d.Layers {
		rotated := d.Rotated(&d.Layers[i].Mixer)
		d.Layers[i].Mixer = engine.Mixer{
			Kind: engine.MixLatent, Heads: 4, KVHeads: 1, KeyDim: 256 + rotated, ValueDim: 64, Latent: 256, QueryLatent: 256 * (i % 2),
		}
	}
	return d
}

// testLatents checks attention over latents at the edges: the widths of published models, least
// widths, keys that threads share, and blocks that leave for host memory.
func testLatents(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	d := Latents()
	skipUnbuilt(t, dev, &d)
	published := engine.Mixer{Heads: 16, KeyDim: 192, ValueDim: 128, Latent: 512, QueryLatent: 96}
	for name, m := range map[string]tinyModel{
		"as in published models": {desc: latentOf(64, 128, 64, published), weights: engine.F32, seed: 81, prompt: 40, slack: 3},
		"of one dim":             {desc: latentOf(3, 64, 0, engine.Mixer{Heads: 1, KeyDim: 1, ValueDim: 1, Latent: 1}), weights: engine.F32, seed: 82, prompt: 21, slack: 3},
		"of 13 heads":            {desc: latentOf(20, 64, 2, engine.Mixer{Heads: 13, KeyDim: 5, ValueDim: 7, Latent: 17, QueryLatent: 90}), weights: engine.F32, seed: 83, prompt: 21, slack: 3},
	} {
		t.Run(name, func(t *testing.T) { m.check(t, dev, opts) })
	}
	t.Run("of keys that threads share", func(t *testing.T) {
		m := tinyModel{desc: latentOf(16, 2400, 4, engine.Mixer{Heads: 3, KeyDim: 8, ValueDim: 5, Latent: 20}), weights: engine.F32, seed: 84, prompt: 2200, slack: 3}
		m.checkExact(t, dev, opts)
	})
	t.Run("of more rows and heads than a GPU multiplies at once", func(t *testing.T) {
		m := tinyModel{desc: latentOf(16, 310, 4, engine.Mixer{Heads: 128, KeyDim: 8, ValueDim: 4, Latent: 12}), weights: engine.F32, seed: 86, prompt: 300, slack: 3}
		m.checkExact(t, dev, opts)
	})
	t.Run("take one head of the cache", func(t *testing.T) {
		m := Load(t, dev, Random(latentOf(64, 128, 64, published), all(engine.F32), 85))
		for kv, size := range map[engine.Type]uint64{engine.F32: 4, engine.F16: 2, engine.BF16: 2} {
			if kv == engine.F32 && opts.Cache != engine.F32 {
				continue // the engine has no such cache
			}
			cfg := Sizes()
			cfg.KVType = kv
			cost, err := m.RunnerCost(cfg)
			require.NoError(t, err)
			require.Equal(t, uint64(cfg.BlockSize)*576*size, cost.BytesPerBlock)
		}
		cfg := Sizes()
		cfg.KVType = engine.F8
		_, err := m.RunnerCost(cfg)
		require.ErrorIs(t, err, engine.ErrUnsupported)
		require.ErrorContains(t, err, "layer 0 has attention over a latent")
		_, err = m.NewRunner(cfg)
		require.ErrorIs(t, err, engine.ErrUnsupported)
	})
	t.Run("leave for host memory and come back to other blocks", func(t *testing.T) {
		g := rigOf(t, opener, Latents(), func(c *engine.RunnerConfig) { c.HostBlocks = 4 })
		g.do(prompt())
		want := g.do(behind(4, 2)).Samples[0]
		g.do(ops(out(4, 3), out(2, 0)))
		g.do(overwrite())
		require.NotEqual(t, want, g.do(behind(4, 2)).Samples[0], "the blocks are another's")
		step := behind(60, 61)
		step.PreOps = []engine.PreOp{in(3, 70), {Kind: engine.BlockCopy, Src: 70, Dst: 60}, in(0, 61)}
		require.Equal(t, want, g.do(step).Samples[0])
	})
}

// latents gives layers attention over a latent, except those that share keys.
func (g describer) latents(d *engine.ModelDesc) {
	for i := range d.Layers {
		old := &d.Layers[i].Mixer
		if !g.one(2) || old.Kind != engine.MixAttention || sharesKeys(d, i) {
			continue
		}
		m := engine.Mixer{
			Kind: engine.MixLatent, Heads: 1 + g.rng.IntN(12), KVHeads: 1, Rope: g.rng.IntN(len(d.Ropes)), ValueDim: 1 + g.rng.IntN(40),
			Latent: 1 + g.rng.IntN(80), Scale: g.scale(0.1, 0.5), EndNorm: g.one(2),
		}
		m.KeyDim = d.Rotated(&m) + 1 + g.rng.IntN(40)
		if g.one(2) {
			m.QueryLatent = 1 + g.rng.IntN(100)
		}
		d.Layers[i].Mixer = m
	}
}

// sharesKeys reports whether a layer reads the keys of another, or another reads those of it.
func sharesKeys(d *engine.ModelDesc, layer int) bool {
	for i, l := range d.Layers {
		if l.Mixer.KVLayer > 0 && (i == layer || i-l.Mixer.KVLayer == layer) {
			return true
		}
	}
	return false
}
