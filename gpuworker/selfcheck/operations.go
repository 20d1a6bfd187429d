package selfcheck

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// operation is one plain operation on random operands, with its result in float64.
type operation struct {
	name    string
	shape   string
	args    engine.OpArgs
	a, b, c []float32
	want    []float64
	bound   float64 // of distance: f32 rounding errors of the longest sum in it
	work    float64 // floating-point operations, for the rate; 0: it is bound by memory
}

func random(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 77))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64())
	}
	return out
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

// operations are all fourteen, on shapes of a small model.
func operations() []operation {
	const rows, cols = 16, 1000
	elements := rows * cols
	shape := fmt.Sprintf("%dx%d", rows, cols)
	each := func(name string, op engine.Op, two bool, f func(a, b float64) float64) operation {
		o := operation{name: name, shape: shape, a: random(elements, 1), bound: 1e-6,
			args: engine.OpArgs{Op: op, Rows: rows, Cols: cols, Batch: 1, Scale: -1.5}}
		if two {
			o.b = random(elements, 2)
		}
		for i, a := range o.a {
			b := 0.0
			if two {
				b = float64(o.b[i])
			}
			o.want = append(o.want, f(float64(a), b))
		}
		return o
	}
	return []operation{
		product("matmul", engine.OpMatmul, rows), product("matvec", engine.OpMatvec, 1),
		product("matmul_f16", engine.OpMatmulF16, rows), product("matvec_f16", engine.OpMatvecF16, 1),
		softmax(rows, cols), rmsNorm(rows, cols),
		each("add", engine.OpAdd, true, func(a, b float64) float64 { return a + b }),
		each("mul", engine.OpMul, true, func(a, b float64) float64 { return a * b }),
		each("scale", engine.OpScale, false, func(a, _ float64) float64 { return -1.5 * a }),
		each("silu", engine.OpSiLU, false, func(a, _ float64) float64 { return reference.SiLU(a) }),
		each("swiglu", engine.OpSwiGLU, true, func(a, b float64) float64 { return reference.SiLU(a) * b }),
		each("copy", engine.OpCopy, false, func(a, _ float64) float64 { return a }),
		rope(), attention(),
	}
}

// product is a GEMM of rows rows of 768 with a matrix of 1000 by 768.
func product(name string, op engine.Op, rows int64) operation {
	const cols, inner = 1000, 768
	a, b := random(int(cols*inner), 3), random(int(rows*inner), 4)
	bound := 2e-5
	if op == engine.OpMatmulF16 || op == engine.OpMatvecF16 {
		bound = 3e-3 // each operand rounded once
	}
	return operation{
		name: name, shape: fmt.Sprintf("%dx%dx%d", rows, cols, inner), a: a, b: b, bound: bound,
		args: engine.OpArgs{Op: op, Rows: rows, Cols: cols, Inner: inner, Batch: 1},
		want: reference.Matmul(wide(a), wide(b), int(rows), int(cols), int(inner)), work: 2 * float64(rows*cols*inner),
	}
}

func softmax(rows, cols int) operation {
	o := operation{name: "softmax", shape: fmt.Sprintf("%dx%d", rows, cols), a: random(rows*cols, 5), bound: 1e-5,
		args: engine.OpArgs{Op: engine.OpSoftmax, Rows: int64(rows), Cols: int64(cols), Batch: 1}}
	for r := range rows {
		o.want = append(o.want, reference.Softmax(wide(o.a[r*cols:(r+1)*cols]))...)
	}
	return o
}

func rmsNorm(rows, cols int) operation {
	o := operation{name: "rms_norm", shape: fmt.Sprintf("%dx%d", rows, cols), a: random(rows*cols, 6), b: random(cols, 7), bound: 1e-5,
		args: engine.OpArgs{Op: engine.OpRMSNorm, Rows: int64(rows), Cols: int64(cols), Batch: 1, Eps: 1e-5}}
	for r := range rows {
		o.want = append(o.want, reference.RMSNorm(wide(o.a[r*cols:(r+1)*cols]), wide(o.b), float64(o.args.Eps))...)
	}
	return o
}

func rope() operation {
	const rows, heads, dim, first = 16, 12, 64, 1000
	o := operation{name: "rope", shape: fmt.Sprintf("%dx%dx%d", rows, heads, dim), a: random(rows*heads*dim, 8), bound: 1e-5,
		args: engine.OpArgs{Op: engine.OpRope, Rows: rows, Cols: dim, Heads: heads, Batch: 1, FirstPosition: first, Base: 10000}}
	for i := range rows * heads {
		o.want = append(o.want, reference.Rotate(wide(o.a[i*dim:(i+1)*dim]), &engine.Rope{Dims: dim, Style: engine.RopeNorm, Base: 10000, Scale: 1}, float64(first+i/heads))...)
	}
	return o
}

func attention() operation {
	const rows, keys, heads, kvHeads, dim = 8, 300, 12, 4, 64
	scale := float32(1 / math.Sqrt(dim))
	o := operation{name: "attention", shape: fmt.Sprintf("%dx%dx%d over %d", rows, heads, dim, keys), bound: 1e-4,
		a: random(rows*heads*dim, 9), b: random(keys*kvHeads*dim, 10), c: random(keys*kvHeads*dim, 11),
		args: engine.OpArgs{Op: engine.OpAttention, Rows: rows, Cols: dim, Inner: keys, Heads: heads, KVHeads: kvHeads, Batch: 1, Scale: scale},
		work: 4 * rows * keys * heads * dim,
	}
	q, k, v := wide(o.a), wide(o.b), wide(o.c)
	for r := range rows {
		for h := range heads {
			kv := h / (heads / kvHeads) * dim
			o.want = append(o.want, reference.Attention(q[(r*heads+h)*dim:][:dim], keys-rows+r+1,
				func(i int) []float64 { return k[i*kvHeads*dim+kv:][:dim] },
				func(i int) []float64 { return v[i*kvHeads*dim+kv:][:dim] }, float64(scale), 0, reference.NoSink)...)
		}
	}
	return o
}

// check runs the operation a few times on the device.
func (o operation) check(device engine.Device, operator engine.Operator) (row Row) {
	row = Row{Name: o.name, Shape: o.shape, Bound: o.bound, Error: math.Inf(1)}
	var held []engine.Buffer
	defer func() {
		for _, b := range held {
			_ = b.Free() // the outcome is known by then
		}
	}()
	put := func(values []float32) engine.Buffer {
		if values == nil || row.Note != "" {
			return nil
		}
		raw := make([]byte, 0, 4*len(values))
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		b, err := device.Alloc(uint64(len(raw)), engine.Workspace)
		if err == nil {
			held = append(held, b)
			_, err = b.WriteAt(raw, 0)
		}
		if err != nil {
			row.Note = err.Error()
		}
		return b
	}
	args := o.args
	args.A, args.B, args.C, args.Out = put(o.a), put(o.b), put(o.c), put(make([]float32, len(o.want)))
	var best time.Duration
	for range 5 {
		if row.Note != "" {
			return row
		}
		took, err := operator.Run(args)
		if err != nil {
			row.Note = err.Error()
			return row
		}
		if best == 0 || took < best {
			best = took
		}
	}
	raw := make([]byte, 4*len(o.want))
	if _, err := args.Out.ReadAt(raw, 0); err != nil {
		row.Note = err.Error()
		return row
	}
	got := make([]float32, len(o.want))
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	row.Time, row.Error = best, distance(got, o.want)
	row.OK = row.Error <= row.Bound
	seconds := max(best.Seconds(), 1e-9)
	if o.work > 0 {
		row.Note = fmt.Sprintf("%.1f GFLOP/s", o.work/seconds/1e9)
	} else {
		row.Note = fmt.Sprintf("%.1f GB/s", 4*float64(len(o.a)+len(o.b)+len(o.want))/seconds/1e9)
	}
	return row
}
