package device

import (
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// task is one row of the table: an operation on operands of one size.
type task struct {
	name, shape string
	args        engine.OpArgs
	a, b, c     int     // elements of each operand; 0: no operand
	out         int     // elements of the result
	ops         float64 // a multiply-add counts two; 0: not counted
	bytes       float64 // read and written, each operand once
	roof        Roof    // what bounds it, which sets the unit of its rate
	bound       float64 // of the error, see worst
	want        want
}

// Bounds on errors: one or a few f32 roundings; sums over a row; GEMMs of f32, whose operands an
// engine may split into shorter numbers but must not round; GEMMs whose operands are rounded to
// f16.
const (
	elementBound = 1e-6
	rowBound     = 1e-5
	productBound = 1e-4
	halfBound    = 3e-3
)

// gemm is a kind of GEMM or GEMV: its name, its accuracy and its roof.
type gemm struct {
	name  string
	op    engine.Op
	bound float64
	roof  Roof // of its operations, or of reading if reading the weights bounds it
}

var (
	matmuls = []gemm{
		{"matmul", engine.OpMatmul, productBound, RoofF32}, {"matmul_f16", engine.OpMatmulF16, halfBound, RoofBF16},
	}
	matvecs = []gemm{
		{"matvec", engine.OpMatvec, productBound, RoofRead}, {"matvec_f16", engine.OpMatvecF16, halfBound, RoofRead},
	}
)

// elements are the elementwise operations.
var elements = []struct {
	name  string
	op    engine.Op
	two   bool // operands
	value func(a, b float64) float64
}{
	{"add", engine.OpAdd, true, func(a, b float64) float64 { return a + b }},
	{"mul", engine.OpMul, true, func(a, b float64) float64 { return a * b }},
	{"scale", engine.OpScale, false, func(a, _ float64) float64 { return scale * a }},
	{"copy", engine.OpCopy, false, func(a, _ float64) float64 { return a }},
	{"silu", engine.OpSiLU, false, func(a, _ float64) float64 { return silu(a) }},
	{"swiglu", engine.OpSwiGLU, true, func(a, b float64) float64 { return silu(a) * b }},
}

// Arguments of the operations that have them.
const (
	scale         = -1.5
	eps           = 1e-5
	ropeBase      = 10000
	firstPosition = 1000
)

// tasks returns the rows of the table, in order.
func tasks(c *OpsConfig) []task {
	var all []task
	for _, p := range matmuls {
		for _, n := range c.Squares {
			all = append(all, p.of(n, n, fmt.Sprintf("%dx%dx%d", n, n, n)))
		}
	}
	for _, p := range matvecs {
		all = append(all, p.of(1, c.Width, fmt.Sprintf("1 by %dx%d", c.Width, c.Width)))
	}
	for _, rows := range []int{c.Width, 1} {
		all = append(all, softmax(rows, c.Width), rmsNorm(rows, c.Width))
	}
	all = append(all, rope(c.Width))
	for _, e := range elements {
		t := square(e.name, e.op, c.Width, elementBound)
		t.args.Scale = scale
		if e.two {
			t.b = t.out
			t.bytes *= 1.5
		}
		t.want = eachElement(e.value)
		all = append(all, t)
	}
	for _, n := range c.Keys {
		all = append(all, attention(n))
	}
	return all
}

// of returns the GEMM of a matrix of size^2 weights and rows rows.
func (p gemm) of(rows, size int, shape string) task {
	t := task{
		name: fmt.Sprintf("%s/%d", p.name, size), shape: shape,
		args: engine.OpArgs{Op: p.op, Rows: int64(rows), Cols: int64(size), Inner: int64(size), Batch: 1},
		a:    size * size, b: rows * size, out: rows * size,
		ops: 2 * float64(rows) * float64(size) * float64(size), roof: p.roof, bound: p.bound, want: dotOf(size),
	}
	t.bytes = 4 * float64(t.a+t.b+t.out)
	return t
}

// square returns an operation that reads and writes a square matrix.
func square(name string, op engine.Op, n int, bound float64) task {
	return matrix(name, op, n, n, bound)
}

// matrix returns an operation that reads and writes a matrix.
func matrix(name string, op engine.Op, rows, cols int, bound float64) task {
	shape := fmt.Sprintf("%dx%d", rows, cols)
	return task{
		name: name + "/" + shape, shape: shape, args: engine.OpArgs{Op: op, Rows: int64(rows), Cols: int64(cols), Batch: 1},
		a: rows * cols, out: rows * cols, bytes: 8 * float64(rows) * float64(cols), roof: RoofCopy, bound: bound,
	}
}

func softmax(rows, cols int) task {
	t := matrix("softmax", engine.OpSoftmax, rows, cols, rowBound)
	t.want = softmaxOf(cols)
	return t
}

func rmsNorm(rows, cols int) task {
	t := matrix("rms_norm", engine.OpRMSNorm, rows, cols, rowBound)
	t.args.Eps, t.b, t.want = eps, cols, rmsNormOf(cols)
	t.bytes += 4 * float64(cols)
	return t
}

func rope(n int) task {
	t := square("rope", engine.OpRope, n, rowBound)
	t.shape = fmt.Sprintf("%dx%dx%d", n, n/headDim, headDim)
	t.args.Cols, t.args.Heads, t.args.Base, t.args.FirstPosition = headDim, int32(n/headDim), ropeBase, firstPosition
	t.want = ropeOf(n)
	return t
}

// attention is causal: row r attends to keys 0 to r.
func attention(n int) task {
	size := n * heads * headDim
	return task{
		name: fmt.Sprintf("attention/%d", n), shape: fmt.Sprintf("%dx%dx%d", n, heads, headDim),
		args: engine.OpArgs{
			Op: engine.OpAttention, Rows: int64(n), Cols: headDim, Inner: int64(n), Batch: 1, Heads: heads, KVHeads: heads,
			Scale: float32(1 / math.Sqrt(headDim)),
		},
		a: size, b: size, c: size, out: size, ops: 4 * heads * headDim * float64(n) * float64(n+1) / 2,
		bytes: 16 * float64(size), roof: RoofF32, bound: productBound, want: attentionOf(n),
	}
}

// Offsets of the operands in the numbers that they share. They are prime, so that no row of one
// operand is a row of another.
const (
	shiftB = 1009
	shiftC = 2003
)

// numbers returns n numbers of mean 0 and variance 1, the same in every run.
func numbers(n int) []float32 {
	rng := rand.New(rand.NewPCG(9, 0x6d696c6c72616365))
	out := make([]float32, n)
	for i := range out {
		bits := rng.Uint64()
		// A sum of three uniform numbers has tails, as activations do.
		sum := int64(bits&0x1fffff) + int64(bits>>21&0x1fffff) + int64(bits>>42&0x1fffff)
		out[i] = float32(float64(sum)/(1<<20) - 3)
	}
	return out
}

// longest returns the number of numbers that the operands of the tasks need.
func longest(all []task) int {
	n := 0
	for i := range all {
		n = max(n, all[i].a, all[i].b, all[i].c)
	}
	return n + shiftC
}

func (t *task) operands(from []float32) operands {
	cut := func(n, shift int) []float32 {
		if n == 0 {
			return nil
		}
		return from[shift : shift+n]
	}
	return operands{a: cut(t.a, 0), b: cut(t.b, shiftB), c: cut(t.c, shiftC)}
}

// bytesOf returns f32 numbers as the bytes of a buffer. Every supported processor is
// little-endian.
func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
