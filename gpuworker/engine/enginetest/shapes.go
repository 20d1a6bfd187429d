package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// edges are shapes at the bounds of a description, each from a tiny model of width 12.
var edges = map[string]struct {
	weights engine.Type
	change  func(*engine.Uniform)
}{
	"one of everything": {engine.F32, func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.Vocab, d.Context, d.RopeDims = 1, 1, 1, 1, 1, 1, 1, 1, 0
	}},
	"one token of context":         {engine.F32, func(d *engine.Uniform) { d.Context = 1 }},
	"one token of vocabulary":      {engine.F32, func(d *engine.Uniform) { d.Vocab = 1 }},
	"two tokens, tied":             {engine.F16, func(d *engine.Uniform) { d.Vocab, d.TiedHead = 2, true }},
	"a context of a block":         {engine.F32, func(d *engine.Uniform) { d.Context = 16 }},
	"one token above a block":      {engine.F32, func(d *engine.Uniform) { d.Context = 17 }},
	"one layer":                    {engine.F32, func(d *engine.Uniform) { d.Layers = 1 }},
	"five layers":                  {engine.F32, func(d *engine.Uniform) { d.Layers = 5 }},
	"a hidden width of 2":          {engine.F32, func(d *engine.Uniform) { d.Hidden = 2 }},
	"a hidden width of 3, in bf16": {engine.BF16, func(d *engine.Uniform) { d.Hidden = 3 }},
	"a hidden width of 5, in f16":  {engine.F16, func(d *engine.Uniform) { d.Hidden = 5 }},
	"a hidden width of 129":        {engine.F32, func(d *engine.Uniform) { d.Hidden = 129 }},
	"an ffn of 1":                  {engine.F32, func(d *engine.Uniform) { d.FFN = 1 }},
	"an ffn of 1, in bf16":         {engine.BF16, func(d *engine.Uniform) { d.FFN = 1 }},
	"an ffn of 65, in f16":         {engine.F16, func(d *engine.Uniform) { d.FFN = 65 }},
	"one head of 2": {engine.F32, func(d *engine.Uniform) {
		d.Heads, d.KVHeads, d.HeadDim, d.RopeDims = 1, 1, 2, 2
	}},
	"heads wider than the model": {engine.F32, func(d *engine.Uniform) { d.HeadDim, d.RopeDims = 64, 64 }},
	"heads narrower than the model": {engine.F32, func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.RopeDims = 60, 2, 1, 4, 4
	}},
	"17 heads of one": {engine.F32, func(d *engine.Uniform) { d.Heads, d.KVHeads = 17, 1 }},
	"64 heads of one": {engine.F32, func(d *engine.Uniform) { d.Heads, d.KVHeads, d.HeadDim, d.RopeDims = 64, 1, 4, 4 }},
	"40 heads of 8":   {engine.F32, func(d *engine.Uniform) { d.Heads, d.KVHeads, d.HeadDim, d.RopeDims = 40, 8, 8, 8 }},
	"13 heads alone":  {engine.F32, func(d *engine.Uniform) { d.Heads, d.KVHeads = 13, 13 }},
	"no rotation":     {engine.F32, func(d *engine.Uniform) { d.RopeDims = 0 }},
	"two rotated dims, neox": {engine.F32, func(d *engine.Uniform) {
		d.RopeDims, d.RopeStyle, d.RopeFactors = 2, engine.RopeNeox, true
	}},
	"norms of heads of 2": {engine.F32, func(d *engine.Uniform) {
		d.HeadDim, d.RopeDims, d.QKNorm, d.RopeStyle = 2, 2, true, engine.RopeNeox
	}},
	"every bias, an attention scale": {engine.F32, func(d *engine.Uniform) {
		d.QKVBias, d.OBias, d.AttnScale, d.RopeScale = true, true, 0.37, 8
	}},
	"rows of one block of 32": {engine.Q8_0, func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.RopeDims, d.FFN = 32, 8, 2, 4, 4, 32
	}},
	"rows of one block of 32, 4 bits": {engine.Q4_0, func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.RopeDims, d.FFN = 32, 4, 4, 8, 8, 96
	}},
	"rows of one block of 256": {engine.Q6_K, func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.RopeDims, d.FFN = 256, 64, 8, 4, 4, 256
	}},
}

func testShapes(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	for name, edge := range edges {
		t.Run(name, func(t *testing.T) {
			d, _ := headsOf(12)
			d.Heads, d.KVHeads, d.RopeStyle, d.QKNorm, d.QKVBias, d.TiedHead = 4, 2, engine.RopeNorm, false, false, false
			edge.change(&d)
			tinyOf(d, edge.weights).check(t, dev, opts)
		})
	}
	t.Run("a vocabulary beyond what is sampled from runs or is refused by name", func(t *testing.T) {
		d, _ := headsOf(12)
		d.Vocab = 1<<19 + 1
		m, err := dev.NewModel(d.Model())
		skipUndivided(t, dev, err)
		if err != nil {
			require.ErrorIs(t, err, engine.ErrUnsupported)
			require.ErrorContains(t, err, "vocab is 524289")
			return
		}
		require.NoError(t, m.Close())
	})
	t.Run("rows that end inside a block are refused by name", func(t *testing.T) {
		d, _ := headsOf(12)
		d.Hidden = 48
		m, err := dev.NewModel(d.Model())
		skipUndivided(t, dev, err)
		require.NoError(t, err)
		raw := make([]byte, 37*2*34)
		b, err := upload(dev, raw, engine.Staging)
		require.NoError(t, err)
		err = m.Bind(engine.TensorDesc{Role: engine.RoleEmbedding, Layer: -1, Type: engine.Q8_0, Dims: []int64{48, 37}}, b)
		require.ErrorIs(t, err, engine.ErrInvalid)
		require.ErrorContains(t, err, "48")
		require.NoError(t, m.Close())
	})
}
