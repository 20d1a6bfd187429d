package enginetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// headWidths are every even width of a head from 2 to 256, and odd ones around the edges of
// vectors.
func headWidths() []int {
	widths := []int{1, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65, 127, 129, 255}
	for w := 2; w <= 256; w += 2 {
		widths = append(widths, w)
	}
	slices.Sort(widths)
	return widths
}

// headsOf returns the shape of a tiny model with heads of that width, and the type of its weights. All other properties vary with the width,
// so that neighbours differ in each: how many heads share keys, how many dims rotate and in which
// style, norms, biases, types.
func headsOf(width int) (engine.Uniform, engine.Type) {
	turn := width / 2
	groups := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 1}, {3, 3}}[turn%5]
	d := engine.Uniform{
		Layers: 2, Hidden: 8 + 2*(turn%6), Heads: groups[0], KVHeads: groups[1], HeadDim: width, FFN: 9 + turn%4, Vocab: 37,
		Context: 64, RopeDims: width / 2 * 2, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
		RopeStyle: engine.RopeStyle(turn % 2), QKNorm: turn%3 == 1, QKVBias: turn%3 == 2, TiedHead: turn%4 == 3,
	}
	if turn%7 == 3 {
		d.RopeDims = width / 4 * 2
	}
	return d, []engine.Type{engine.F32, engine.F16, engine.BF16}[turn%3]
}

func testHeadWidths(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	for _, width := range headWidths() {
		t.Run(fmt.Sprintf("of %d", width), func(t *testing.T) { tinyOf(headsOf(width)).check(t, dev, opts) })
	}
	t.Run("beyond 256 run or are refused by name", func(t *testing.T) {
		for _, width := range []int{257, 258, 320, 511, 512, 4096} {
			model := tinyOf(headsOf(width))
			m, err := dev.NewModel(model.desc)
			skipUndivided(t, dev, err)
			if err != nil {
				require.ErrorIs(t, err, engine.ErrUnsupported)
				require.ErrorContains(t, err, fmt.Sprintf("head_dim is %d", width))
				continue
			}
			require.NoError(t, m.Close())
			if width <= 512 {
				model.check(t, dev, opts)
			}
		}
	})
}
