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

// quantBytes returns the bytes of a block that have quantised numbers. If they are zero, the block
// has the offsets of the weights, which the rounding of activations does not affect in types with
// minimums.
var quantBytes = map[engine.Type][2]int{
	engine.Q4_1: {4, 20}, engine.Q5_1: {4, 24}, engine.Q2_K: {16, 80}, engine.Q4_K: {16, 144}, engine.Q5_K: {16, 176},
}

// form is one of the two forms of a matrix product, GEMM and GEMV, with the types that its operands
// are rounded to.
type form struct {
	matmul, matvec engine.Op
	halves         bool // operands are rounded to f16, else stay f32
}

var forms = map[string]form{
	"f32": {engine.OpMatmul, engine.OpMatvec, false},
	"f16": {engine.OpMatmulF16, engine.OpMatvecF16, true},
}

// product is a GEMM with its float64 result from the same dequantised weights, and the spread of
// each element's rounding errors, which is far below their bound.
type product struct {
	opCase
	sigma []float64
}

// productShape is the shape and the types of a product.
type productShape struct {
	form                     form
	weights                  engine.Type
	rows, cols, inner, batch int
}

var products kept[productShape, *product]

// keptProduct returns newProduct, made once. It is read-only.
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
			Op: s.form.matmul, AType: weights, Rows: int64(rows), Cols: int64(cols), Inner: int64(inner), Batch: int32(batch),
		},
		b:      bent(8, n*inner),
		aBytes: RandomMatrix(rng, weights, inner, cols, 1/math.Sqrt(float64(inner))),
	}}
	w, err := reference.Dequantize(weights, p.aBytes, cols*inner)
	if err != nil {
		return nil, err
	}
	offsets := make([]float64, len(w)) // the part of a weight's minimum: removing it rounds relative to it
	if at, ok := quantBytes[weights]; ok {
		block, _ := rules.BlockOf(weights)
		flat := append([]byte(nil), p.aBytes...)
		for i := 0; i < len(flat); i += int(block.Bytes) {
			clear(flat[i+at[0] : i+at[1]])
		}
		if offsets, err = reference.Dequantize(weights, flat, cols*inner); err != nil {
			return nil, err
		}
	}
	x := widen(p.b)
	p.want = reference.Matmul(w, x, n, cols, inner)
	for i := range p.want {
		row, col := x[i/cols*inner:i/cols*inner+inner], i%cols*inner
		bound, variance := 0.0, 0.0
		for k, v := range row {
			weight := w[col+k]
			term, offset := math.Abs(weight*v), math.Abs(offsets[col+k]*v)
			bound += ulp * float64(8+inner) * (term + offset)
			variance += float64(inner) * ulp * ulp * (term*term + offset*offset)
			if s.form.halves { // at most one rounding of each operand; below the normal numbers of f16 its step stays the same
				e := math.Max(0x1p-11*term, 0x1p-25*math.Abs(weight)) + math.Max(0x1p-11*term, 0x1p-25*math.Abs(v))
				bound += e
				variance += e * e / 6
			}
		}
		p.bound, p.sigma = append(p.bound, bound+tiny), append(p.sigma, math.Sqrt(variance))
	}
	return p, nil
}

func testProducts(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	for name, f := range forms {
		for _, weights := range rules.WeightTypes() {
			t.Run(fmt.Sprintf("%s of weights of type %d", name, weights), func(t *testing.T) {
				dev := open(t, opener)
				block, _ := rules.BlockOf(weights)
				widths := []int{1, 31, 129, 300}
				if block.Elements > 1 {
					widths = []int{int(block.Elements), 3 * int(block.Elements), 768}
				}
				for _, inner := range widths {
					for _, shape := range [][3]int{{1, 1, 1}, {1, 15, 1}, {2, 17, 1}, {33, 97, 1}, {3, 40, 2}} {
						checkProduct(t, dev, productShape{f, weights, shape[0], shape[1], inner, shape[2]}, opts)
					}
				}
			})
		}
		t.Run(name+" around the edges of tiles", func(t *testing.T) {
			dev := open(t, opener)
			for _, inner := range []int{7, 8, 9, 63, 64, 65} {
				for _, shape := range [][2]int{{31, 65}, {32, 64}, {33, 63}, {127, 129}, {129, 127}} {
					checkProduct(t, dev, productShape{f, engine.F32, shape[0], shape[1], inner, 1}, opts)
				}
			}
			checkProduct(t, dev, productShape{f, engine.F32, 300, 520, 1100, 1}, opts)
			checkProduct(t, dev, productShape{f, engine.Q8_0, 129, 257, 2048, 1}, opts)
		})
		t.Run(name+" follow a number that is none", func(t *testing.T) {
			dev := open(t, opener)
			for _, weights := range rules.WeightTypes() {
				p, err := newProduct(productShape{f, weights, 3, 20, 256, 1})
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
		t.Run(name+" without an element, or of several rows with a vector, are refused", func(t *testing.T) {
			dev := open(t, opener)
			p, err := newProduct(productShape{f, engine.F32, 2, 3, 4, 1})
			require.NoError(t, err)
			for field, spoil := range map[string]func(*engine.OpArgs){
				"rows":  func(a *engine.OpArgs) { a.Rows = 0 },
				"cols":  func(a *engine.OpArgs) { a.Cols = 0 },
				"inner": func(a *engine.OpArgs) { a.Inner = 0 },
				"batch": func(a *engine.OpArgs) { a.Batch = 0 },
			} {
				bad := p.opCase
				spoil(&bad.args)
				_, err := bad.run(dev)
				require.ErrorIs(t, err, engine.ErrInvalid)
				require.ErrorContains(t, err, field)
			}
			p.args.Op = f.matvec
			_, err = p.run(dev)
			require.ErrorIs(t, err, engine.ErrInvalid)
			require.ErrorContains(t, err, "rows is 2")
		})
	}
	t.Run("in f32 keep what f16 has no room for", func(t *testing.T) {
		dev := open(t, opener)
		run := func(op engine.Op, a, b []float32) float64 {
			c := opCase{a: a, b: b, want: []float64{0}}
			c.args = engine.OpArgs{Op: op, Rows: 1, Cols: 1, Inner: int64(len(a)), Batch: 1}
			got, err := c.run(dev)
			require.NoError(t, err)
			return float64(got[0])
		}
		for _, op := range []engine.Op{engine.OpMatmul, engine.OpMatvec} {
			require.InDelta(t, 0x1p-20, run(op, []float32{1 + 0x1p-20, 1}, []float32{1, -1}), 0)
			require.InDelta(t, 0x1p-20, run(op, []float32{1, -1}, []float32{1 + 0x1p-20, 1}), 0)
			require.InEpsilon(t, 1e12, run(op, []float32{1e6}, []float32{1e6}), ulp)
		}
		for _, op := range []engine.Op{engine.OpMatmulF16, engine.OpMatvecF16} {
			got := run(op, []float32{1e6}, []float32{1e6})
			require.True(t, math.IsInf(got, 1) || math.IsNaN(got), "operation %d gives %v", op, got)
		}
	})
}

func checkProduct(t *testing.T, dev engine.Device, s productShape, opts Options) {
	t.Helper()
	rows, cols, inner, batch := s.rows, s.cols, s.inner, s.batch
	what := fmt.Sprintf("operation %d, type %d (%d, %d) inner %d batch %d", s.form.matmul, s.weights, rows, cols, inner, batch)
	p, err := keptProduct(s)
	require.NoError(t, err)
	got, err := p.run(dev)
	require.NoError(t, err, what)
	require.NoError(t, Close(got, p.want, p.bound), what)
	checkSpread(t, p, got, what)
	if rows == 1 {
		return
	}
	// The first rows alone have the same bits. With a vector they are within the same bounds, and
	// have the same bits if the device has one class.
	for r := range min(rows*batch, 4) {
		single := &opCase{args: p.args, aBytes: p.aBytes, b: p.b[r*inner : (r+1)*inner], want: p.want[r*cols : (r+1)*cols]}
		single.args.Rows, single.args.Batch = 1, 1
		alone, err := single.run(dev)
		require.NoError(t, err, what)
		require.Equal(t, bytesOf(got[r*cols:(r+1)*cols]), bytesOf(alone), "row %d of %s alone", r, what)
		single.args.Op = s.form.matvec
		vector, err := single.run(dev)
		require.NoError(t, err, what)
		require.NoError(t, Close(vector, single.want, p.bound[r*cols:(r+1)*cols]), "matvec of %s", what)
		if opts.OneClass {
			require.Equal(t, bytesOf(alone), bytesOf(vector), "row %d of %s with a vector", r, what)
		}
	}
}

// checkSpread compares the errors with the spread that rounding explains, which is far below the
// bound. Operands of fewer bits than promised, a lost low bit of the weights or a wrong minimum
// exceed it.
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
		require.Less(t, math.Sqrt(sum/float64(n)), 1.25, "%s: errors in units of what rounding explains", what)
	}
}
