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

// quantBytes are the bytes of a block that hold quantised numbers: with them zero the block gives the weights' offsets,
// the part that the rounding of activations does not touch in types with minimums.
var quantBytes = map[engine.Type][2]int{
	engine.Q4_1: {4, 20}, engine.Q5_1: {4, 24}, engine.Q4_K: {16, 144}, engine.Q5_K: {16, 176},
}

// product is a product with the float64 of the same dequantised weights, and the spread that the rounding of activations
// gives each element.
type product struct {
	opCase
	sigma []float64 // zero where activations stay in f32
}

// productShape is what a product is made from.
type productShape struct {
	op                       engine.Op
	weights                  engine.Type
	rows, cols, inner, batch int
	activations              engine.Type // what they are rounded to: F16 or BF16; F32 = int8 for quantised weights, else nothing
	roundings                float64     // of each term: 1, or 2 where the weight is rounded to that type as well
}

// rounding is the most that rounding to a type changes a number, as a share of it.
var rounding = map[engine.Type]float64{engine.F16: 0x1p-11, engine.BF16: 0x1p-8}

var products kept[productShape, *product]

// keptProduct is newProduct, made once; nobody may change it.
func keptProduct(s productShape) (*product, error) {
	return products.get(s, func() (*product, error) { return newProduct(s) })
}

// newProduct makes out(rows, cols) = b(rows, inner) * a(cols, inner)^T.
func newProduct(s productShape) (*product, error) {
	weights, rows, cols, inner, batch := s.weights, s.rows, s.cols, s.inner, s.batch
	rng := generator(uint64(weights)<<32 + uint64(inner))
	n := rows * batch
	p := &product{opCase: opCase{
		args: engine.OpArgs{
			Op: s.op, AType: weights, Rows: int64(rows), Cols: int64(cols), Inner: int64(inner), Batch: int32(batch),
		},
		b:      bent(8, n*inner),
		aBytes: RandomMatrix(rng, weights, inner, cols, 1/math.Sqrt(float64(inner))),
	}}
	w, err := reference.Dequantize(weights, p.aBytes, cols*inner)
	if err != nil {
		return nil, err
	}
	steps := w // the part of each weight that multiplies rounded activations
	if at, ok := quantBytes[weights]; ok {
		block, _ := rules.BlockOf(weights)
		flat := append([]byte(nil), p.aBytes...)
		for i := 0; i < len(flat); i += int(block.Bytes) {
			clear(flat[i+at[0] : i+at[1]])
		}
		offsets, err := reference.Dequantize(weights, flat, cols*inner)
		if err != nil {
			return nil, err
		}
		steps = make([]float64, len(w))
		for i := range steps {
			steps[i] = w[i] - offsets[i]
		}
	}
	block, _ := rules.BlockOf(weights)
	x := widen(p.b)
	p.want = reference.Matmul(w, x, n, cols, inner)
	for i := range p.want {
		row, col := x[i/cols*inner:i/cols*inner+inner], i%cols*inner
		bound, sigma := 0.0, 0.0
		for at := 0; at < inner; at += 32 {
			end, top := min(at+32, inner), 0.0
			for _, v := range row[at:end] {
				top = math.Max(top, math.Abs(v))
			}
			for k := at; k < end; k++ {
				step := math.Abs(steps[col+k])
				// f32 sums over products, and over the offsets' products, in runs of up to 128.
				bound += ulp * (8 + float64(min(inner, 128)) + float64(inner)/128) * (math.Abs(w[col+k]*row[k]) + math.Abs((w[col+k]-steps[col+k])*row[k]))
				if share, ok := rounding[s.activations]; ok {
					e := share * math.Abs(w[col+k]*row[k])
					if s.activations == engine.F16 { // below its normal numbers the step stays the same
						e = math.Max(e, 0x1p-25*math.Abs(w[col+k]))
					}
					bound += s.roundings * e
					sigma += s.roundings * e * e / 3
				} else if block.Elements > 1 { // int8 of 32: at most half of top/127 each, evenly spread
					bound += step*top/254*1.001 + ulp*16*step*top
					sigma += step * step * top * top / (127 * 127 * 12)
				}
			}
		}
		p.bound, p.sigma = append(p.bound, bound+tiny), append(p.sigma, math.Sqrt(sigma))
	}
	return p, nil
}

func testProducts(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	for _, weights := range rules.WeightTypes() {
		t.Run(fmt.Sprintf("of weights of type %d", weights), func(t *testing.T) {
			dev := open(t, opener)
			block, _ := rules.BlockOf(weights)
			widths := []int{1, 31, 129, 300}
			if block.Elements > 1 {
				widths = []int{int(block.Elements), 3 * int(block.Elements), 768}
			}
			for _, inner := range widths {
				for _, shape := range [][3]int{{1, 1, 1}, {1, 15, 1}, {2, 17, 1}, {33, 97, 1}, {3, 40, 2}} {
					checkProduct(t, dev, weights, shape[0], shape[1], inner, shape[2], opts)
				}
			}
		})
	}
	t.Run("follow a number that is none", func(t *testing.T) {
		dev := open(t, opener)
		for _, weights := range rules.WeightTypes() {
			p, err := newProduct(productShape{engine.OpMatmul, weights, 3, 20, 256, 1, opts.operands(weights), opts.roundings(engine.OpMatmul)})
			require.NoError(t, err)
			p.b[256+100] = float32(math.NaN())
			got, err := p.run(dev)
			require.NoError(t, err)
			for i, v := range got {
				if i/20 == 1 {
					require.True(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0), "type %d: row 1 holds %v", weights, v)
				} else {
					require.NoError(t, Close(got[i:i+1], p.want[i:i+1], p.bound[i:i+1]), "type %d: other rows are untouched", weights)
				}
			}
		}
	})
}

func checkProduct(t *testing.T, dev engine.Device, weights engine.Type, rows, cols, inner, batch int, opts Options) {
	t.Helper()
	what := fmt.Sprintf("type %d (%d, %d) inner %d batch %d", weights, rows, cols, inner, batch)
	p, err := keptProduct(productShape{engine.OpMatmul, weights, rows, cols, inner, batch, opts.operands(weights), opts.roundings(engine.OpMatmul)})
	require.NoError(t, err)
	got, err := p.run(dev)
	require.NoError(t, err, what)
	require.NoError(t, Close(got, p.want, p.bound), what)
	checkSpread(t, p, got, what)
	if rows != 1 {
		// Every row alone through the decode path: inside the same bounds, and the same bits where the classes are one.
		for r := range rows * batch {
			single := &opCase{args: p.args, aBytes: p.aBytes, b: p.b[r*inner : (r+1)*inner], want: p.want[r*cols : (r+1)*cols]}
			single.args.Op, single.args.Rows, single.args.Batch = engine.OpMatvec, 1, 1
			alone, err := single.run(dev)
			require.NoError(t, err, what)
			require.NoError(t, Close(alone, single.want, p.bound[r*cols:(r+1)*cols]), "matvec of %s", what)
			if opts.OneClass {
				require.Equal(t, bytesOf(got[r*cols:(r+1)*cols]), bytesOf(alone), "row %d of %s alone", r, what)
			}
			if r == 4 {
				break // the first rows show it
			}
		}
	}
}

// checkSpread holds the errors to the spread that rounding explains, which is far below the bound: a lost low bit of the
// weights or a wrong minimum shows here first.
func checkSpread(t *testing.T, p *product, got []float32, what string) {
	t.Helper()
	sum, n := 0.0, 0
	for i, s := range p.sigma {
		if s > 0 {
			e := (float64(got[i]) - p.want[i]) / s
			sum += e * e
			n++
		}
	}
	if n >= 500 {
		require.Less(t, math.Sqrt(sum/float64(n)), 1.25, "%s: errors in units of what rounded activations explain", what)
	}
}
