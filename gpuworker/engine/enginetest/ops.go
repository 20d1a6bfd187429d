package enginetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// ulp is the relative rounding error of one f32 operation; tiny is what flushed or subnormal
// results may lose.
const (
	ulp  = 1.0 / (1 << 24)
	tiny = 2e-38
)

// opCase is a plain operation with its operands, its result in float64, and the bound of each
// element.
type opCase struct {
	args        engine.OpArgs
	a, b, c     []float32
	aBytes      []byte // a in its own type, where that is not F32
	want, bound []float64
}

// run runs the operation. Its output buffer has exactly the wanted size, so that a write outside is
// refused.
func (c *opCase) run(dev engine.Device) ([]float32, error) {
	op, ok := dev.(engine.Operator)
	if !ok {
		return nil, fmt.Errorf("%T is no Operator", dev)
	}
	args := c.args
	var held []engine.Buffer
	put := func(data []byte) engine.Buffer {
		b, err := upload(dev, data, engine.Workspace)
		if err != nil {
			panic(err)
		}
		held = append(held, b)
		return b
	}
	defer func() {
		for _, b := range held {
			_ = b.Free()
		}
	}()
	if c.aBytes != nil {
		args.A = put(c.aBytes)
	} else {
		args.A = put(bytesOf(c.a))
	}
	if c.b != nil {
		args.B = put(bytesOf(c.b))
	}
	if c.c != nil {
		args.C = put(bytesOf(c.c))
	}
	out := make([]float32, len(c.want))
	for i := range out {
		out[i] = float32(math.NaN()) // an element that is not written fails
	}
	args.Out = put(bytesOf(out))
	if _, err := op.Run(args); err != nil {
		return nil, err
	}
	return floatsIn(args.Out)
}

// bent returns n normally distributed numbers with some large, some equal and some tiny ones.
func bent(seed uint64, n int) []float32 {
	rng := generator(seed)
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64())
		switch rng.IntN(16) {
		case 0:
			out[i] *= 30
		case 1:
			out[i] = 0.5
		case 2:
			out[i] *= 1e-6
		}
	}
	return out
}

func elementwise(op engine.Op, rows, cols int64, batch int32) opCase {
	n := int(rows * cols * int64(batch))
	c := opCase{args: engine.OpArgs{Op: op, Rows: rows, Cols: cols, Batch: batch, Scale: -1.7}, a: bent(1, n)}
	if op == engine.OpAdd || op == engine.OpMul || op == engine.OpSwiGLU {
		c.b = bent(2, n)
	}
	for i := range n {
		a, b := float64(c.a[i]), 0.0
		if c.b != nil {
			b = float64(c.b[i])
		}
		var v, bound float64
		switch op {
		case engine.OpAdd: // one rounding
			v, bound = a+b, ulp*math.Abs(a+b)
		case engine.OpMul:
			v, bound = a*b, ulp*math.Abs(a*b)
		case engine.OpScale:
			v = a * float64(c.args.Scale)
			bound = ulp * math.Abs(v)
		case engine.OpCopy: // exact
			v = a
		case engine.OpSiLU: // exp, add, divide, and a rounding to spare
			v = reference.SiLU(a)
			bound = 6 * ulp * math.Abs(v)
		case engine.OpSwiGLU: // and a product
			v = reference.SiLU(a) * b
			bound = 8 * ulp * math.Abs(v)
		default:
			panic(fmt.Sprintf("operation %d is not one element at a time", op))
		}
		c.want, c.bound = append(c.want, v), append(c.bound, bound+tiny)
	}
	return c
}

func softmax(rows, cols int64, batch int32) opCase {
	n := int(rows * int64(batch))
	c := opCase{args: engine.OpArgs{Op: engine.OpSoftmax, Rows: rows, Cols: cols, Batch: batch}, a: bent(3, n*int(cols))}
	for r := range n {
		row := c.a[r*int(cols) : (r+1)*int(cols)]
		switch r % 4 {
		case 1: // masked in part
			for i := 0; i < len(row)-1; i += 2 {
				row[i] = float32(math.Inf(-1))
			}
		case 2: // masked whole
			for i := range row {
				row[i] = float32(math.Inf(-1))
			}
		}
		top := math.Inf(-1)
		for _, v := range row {
			top = math.Max(top, float64(v))
		}
		for i, p := range reference.Softmax(widen(row)) {
			away := 0.0 // the rounding of x - max is relative to it, and exp makes it absolute
			if p > 0 {
				away = top - float64(row[i])
			}
			c.want = append(c.want, p)
			c.bound = append(c.bound, p*ulp*(8+float64(cols)+away)+tiny)
		}
	}
	return c
}

func rmsNorm(rows, cols int64, batch int32) opCase {
	n := int(rows) * int(batch)
	c := opCase{
		args: engine.OpArgs{Op: engine.OpRMSNorm, Rows: rows, Cols: cols, Batch: batch, Eps: 1e-5},
		a:    bent(4, n*int(cols)), b: bent(5, int(cols)*int(batch)),
	}
	for r := range n {
		problem := r / int(rows)
		weight := widen(c.b[problem*int(cols) : (problem+1)*int(cols)])
		for _, v := range reference.RMSNorm(widen(c.a[r*int(cols):(r+1)*int(cols)]), weight, float64(c.args.Eps)) {
			c.want = append(c.want, v) // a sum of squares in any order, then a root, a division and two products
			c.bound = append(c.bound, math.Abs(v)*ulp*(float64(cols)/2+8)+tiny)
		}
	}
	return c
}

func rope(rows, dim int64, batch, heads int32, style engine.RopeStyle, first int32) opCase {
	n := int(rows) * int(batch)
	c := opCase{
		args: engine.OpArgs{
			Op: engine.OpRope, Rows: rows, Cols: dim, Batch: batch, Heads: heads, RopeStyle: style, FirstPosition: first, Base: 10000,
		},
		a: bent(6, n*int(heads)*int(dim)),
	}
	for i := range n * int(heads) {
		head := widen(c.a[i*int(dim) : (i+1)*int(dim)])
		position := float64(first) + float64(i/int(heads)%int(rows))
		for j, v := range reference.Rotate(head, &engine.Rope{Dims: int(dim), Style: style, Base: 10000, Scale: 1}, position) {
			partner := j ^ 1
			if style == engine.RopeNeox {
				partner = (j + int(dim)/2) % int(dim)
			}
			c.want = append(c.want, v) // sine and cosine rounded once each, two products, a sum
			c.bound = append(c.bound, 4*ulp*(math.Abs(head[j])+math.Abs(head[partner]))+tiny)
		}
	}
	return c
}

func attention(rows, keys, dim int64, batch, heads, kvHeads int32) opCase {
	c := opCase{
		args: engine.OpArgs{
			Op: engine.OpAttention, Rows: rows, Cols: dim, Inner: keys, Batch: batch, Heads: heads, KVHeads: kvHeads,
			Scale: float32(1 / math.Sqrt(float64(dim))),
		},
	}
	scale := float64(c.args.Scale)
	rng := generator(7)
	fill := func(n int64) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = float32(rng.NormFloat64() * 1.5)
		}
		return out
	}
	c.a = fill(int64(batch) * rows * int64(heads) * dim)
	c.b, c.c = fill(int64(batch)*keys*int64(kvHeads)*dim), fill(int64(batch)*keys*int64(kvHeads)*dim)
	kvWidth := int(int64(kvHeads) * dim)
	for i := range int(int64(batch) * rows * int64(heads)) {
		problem, row, head := i/int(rows*int64(heads)), i/int(heads)%int(rows), i%int(heads)
		at := func(m []float32) func(int) []float64 {
			return func(p int) []float64 {
				start := (problem*int(keys)+p)*kvWidth + head/int(heads/kvHeads)*int(dim)
				return widen(m[start : start+int(dim)])
			}
		}
		q := widen(c.a[i*int(dim) : (i+1)*int(dim)])
		seen := int(keys-rows) + row + 1
		value := at(c.c)
		// A score's error is ulp * dim * the sum of |q k|, which moves its weight by twice that;
		// sums over the keys follow.
		worst, large := 0.0, 0.0
		for p := range seen {
			sum := 0.0
			for j, k := range at(c.b)(p) {
				sum += math.Abs(q[j] * k)
			}
			worst = math.Max(worst, sum*scale)
			for _, v := range value(p) {
				large = math.Max(large, math.Abs(v))
			}
		}
		bound := large * ulp * (2*worst*float64(dim)/4 + float64(seen) + 32)
		for _, v := range reference.Attention(q, seen, at(c.b), value, scale, 0, reference.NoSink) {
			c.want, c.bound = append(c.want, v), append(c.bound, bound)
		}
	}
	return c
}

func testOps(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	cases := map[string]opCase{}
	for name, op := range map[string]engine.Op{
		"add": engine.OpAdd, "mul": engine.OpMul, "scale": engine.OpScale, "silu": engine.OpSiLU, "swiglu": engine.OpSwiGLU,
		"copy": engine.OpCopy,
	} {
		for _, s := range [][3]int64{{1, 1, 1}, {3, 17, 1}, {2, 1000, 3}, {5, 4097, 1}} {
			cases[fmt.Sprintf("%s %v", name, s)] = elementwise(op, s[0], s[1], int32(s[2]))
		}
	}
	for _, s := range [][3]int64{{1, 1, 1}, {5, 3, 2}, {4, 31, 1}, {4, 1000, 1}, {6, 515, 2}} {
		cases[fmt.Sprintf("softmax %v", s)] = softmax(s[0], s[1], int32(s[2]))
		cases[fmt.Sprintf("rms norm %v", s)] = rmsNorm(s[0], s[1], int32(s[2]))
	}
	for _, style := range []engine.RopeStyle{engine.RopeNorm, engine.RopeNeox} {
		cases[fmt.Sprintf("rope style %d of one head of 2", style)] = rope(1, 2, 1, 1, style, 0)
		cases[fmt.Sprintf("rope style %d of heads of 22", style)] = rope(5, 22, 2, 3, style, 11)
		cases[fmt.Sprintf("rope style %d far out", style)] = rope(3, 128, 1, 2, style, 100_000)
	}
	for _, s := range [][6]int64{
		{1, 1, 4, 1, 1, 1}, {7, 7, 20, 1, 6, 2}, {3, 41, 17, 2, 4, 4}, {1, 700, 64, 1, 4, 1}, {19, 300, 128, 1, 2, 1},
	} {
		cases[fmt.Sprintf("attention %v", s)] = attention(s[0], s[1], s[2], int32(s[3]), int32(s[4]), int32(s[5]))
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dev := open(t, opener)
			got, err := c.run(dev)
			require.NoError(t, err)
			require.NoError(t, Close(got, c.want, c.bound))
			again, err := c.run(dev)
			require.NoError(t, err)
			require.Equal(t, bytesOf(got), bytesOf(again), "run again it gives the same bits")
		})
	}
	t.Run("write over an input where they are elementwise", func(t *testing.T) {
		dev := open(t, opener)
		for _, op := range []engine.Op{engine.OpAdd, engine.OpMul, engine.OpScale, engine.OpSiLU, engine.OpSwiGLU, engine.OpCopy} {
			c := elementwise(op, 3, 333, 1)
			a, err := upload(dev, bytesOf(c.a), engine.Workspace)
			require.NoError(t, err)
			args := c.args
			args.A, args.Out = a, a
			if c.b != nil {
				args.B, err = upload(dev, bytesOf(c.b), engine.Workspace)
				require.NoError(t, err)
			}
			_, err = dev.(engine.Operator).Run(args)
			require.NoError(t, err)
			got, err := floatsIn(a)
			require.NoError(t, err)
			require.NoError(t, Close(got, c.want, c.bound))
			require.NoError(t, a.Free())
			if args.B != nil {
				require.NoError(t, args.B.Free())
			}
		}
	})
	t.Run("are refused when operands do not fit", func(t *testing.T) {
		dev := open(t, opener)
		small, err := dev.Alloc(40, engine.Workspace)
		require.NoError(t, err)
		large, err := dev.Alloc(4000, engine.Workspace)
		require.NoError(t, err)
		good := engine.OpArgs{Op: engine.OpAdd, Rows: 10, Cols: 100, Batch: 1, A: large, B: large, Out: large}
		run := dev.(engine.Operator).Run
		_, err = run(good)
		require.NoError(t, err)
		for name, spoil := range map[string]func(*engine.OpArgs){
			"an operand too small":   func(a *engine.OpArgs) { a.B = small },
			"an output too small":    func(a *engine.OpArgs) { a.Out = small },
			"an operand missing":     func(a *engine.OpArgs) { a.B = nil },
			"no output":              func(a *engine.OpArgs) { a.Out = nil },
			"an unknown operation":   func(a *engine.OpArgs) { a.Op = engine.OpCount },
			"a negative shape":       func(a *engine.OpArgs) { a.Rows = -1 },
			"a shape that overflows": func(a *engine.OpArgs) { a.Rows, a.Cols = 1<<40, 1<<40 },
			"no batch":               func(a *engine.OpArgs) { a.Batch = 0 },
			"heads that do not divide": func(a *engine.OpArgs) {
				a.Op, a.C, a.Rows, a.Cols, a.Inner, a.Heads, a.KVHeads = engine.OpAttention, large, 1, 4, 1, 3, 2
			},
			"more rows than keys": func(a *engine.OpArgs) {
				a.Op, a.C, a.Rows, a.Cols, a.Inner, a.Heads, a.KVHeads = engine.OpAttention, large, 5, 4, 4, 1, 1
			},
			"a rope over an odd dim":     func(a *engine.OpArgs) { a.Op, a.Cols, a.Heads, a.Base = engine.OpRope, 5, 1, 10000 },
			"weights of an unknown type": func(a *engine.OpArgs) { a.Op, a.Inner, a.Cols, a.AType = engine.OpMatmul, 4, 4, 99 },
			"rows that end in a block":   func(a *engine.OpArgs) { a.Op, a.Inner, a.Cols, a.AType = engine.OpMatmul, 33, 2, engine.Q8_0 },
		} {
			args := good
			spoil(&args)
			_, err := run(args)
			require.Error(t, err, name)
			if args.AType != 99 {
				require.ErrorIs(t, err, engine.ErrInvalid, name)
			}
		}
		require.NoError(t, small.Free())
		_, err = run(engine.OpArgs{Op: engine.OpCopy, Rows: 1, Cols: 1, Batch: 1, A: small, Out: large})
		require.ErrorIs(t, err, engine.ErrPrecondition, "a freed operand")
		require.NoError(t, large.Free())
	})
}
