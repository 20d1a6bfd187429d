package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Kind is the roof of a GEMM, which depends on the type of its weights.
type Kind int

// Kinds of GEMMs.
const (
	KindInt8 Kind = iota // quantised weights
	KindBF16
	KindF32 // F32 and F16 weights
	Kinds
)

// String returns the name in lower case.
func (k Kind) String() string { return [...]string{"int8", "bf16", "f32"}[k] }

// Roofs are rates a second; 0: unknown.
type Roofs struct {
	Read float64        // bytes
	Ops  [Kinds]float64 // operations
}

// MeasureRoofs measures every roof, each for about d.
func MeasureRoofs(m engine.Meter, d time.Duration) (Roofs, error) {
	var r Roofs
	for _, roof := range []struct {
		what engine.Measure
		rate *float64
	}{
		{engine.MeasureReadBytes, &r.Read}, {engine.MeasureInt8Ops, &r.Ops[KindInt8]},
		{engine.MeasureBF16Ops, &r.Ops[KindBF16]}, {engine.MeasureF32Ops, &r.Ops[KindF32]},
	} {
		rate, err := m.Measure(roof.what, uint64(d))
		switch {
		case errors.Is(err, engine.ErrUnsupported):
			continue
		case err != nil:
			return Roofs{}, fmt.Errorf("measure roof %d: %w", roof.what, err)
		}
		*roof.rate = rate
	}
	return r, nil
}

// MeasureRead measures the roof of reading for about d; 0 if the device cannot measure it.
func MeasureRead(m engine.Meter, d time.Duration) (float64, error) {
	rate, err := m.Measure(engine.MeasureReadBytes, uint64(d))
	if errors.Is(err, engine.ErrUnsupported) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("measure roof %d: %w", engine.MeasureReadBytes, err)
	}
	return rate, nil
}

// Max returns the larger of each rate, because other load can only make a measured roof too low.
func (r Roofs) Max(o Roofs) Roofs {
	out := Roofs{Read: max(r.Read, o.Read)}
	for k := range out.Ops {
		out.Ops[k] = max(r.Ops[k], o.Ops[k])
	}
	return out
}

// Ops are operations by kind.
type Ops [Kinds]float64

// Sum returns the number of operations.
func (o Ops) Sum() (sum float64) {
	for _, n := range o {
		sum += n
	}
	return sum
}

// Kind returns the kind of most operations.
func (o Ops) Kind() Kind {
	best := Kind(0)
	for k := range Kinds {
		if o[k] > o[best] {
			best = k
		}
	}
	return best
}

// Share returns the time of the operations at their roofs over the time that they took, in
// seconds; 0 if a roof is unknown. It is above 1 if a roof was measured too low or the work was
// counted too high.
func (r Roofs) Share(o Ops, took float64) float64 {
	var least float64
	for k, n := range o {
		if n == 0 {
			continue
		}
		if r.Ops[k] == 0 {
			return 0
		}
		least += n / r.Ops[k]
	}
	return ratio(least, took)
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// Roof names what bounds an operation.
type Roof string

// RoofRead and RoofCopy count bytes, the others operations.
const (
	RoofRead Roof = "read"
	RoofCopy Roof = "copy" // reads and writes counted together
	RoofF32  Roof = "f32"
	RoofBF16 Roof = "bf16"
)

// bytes reports whether rates under this roof count bytes.
func (r Roof) bytes() bool { return r == RoofRead || r == RoofCopy }

// OpsRoofs are rates a second; 0: unknown.
type OpsRoofs struct {
	Read float64 `json:"read_bytes"`
	Copy float64 `json:"copy_bytes"`
	F32  float64 `json:"f32_ops"`
	BF16 float64 `json:"bf16_ops"`
}

func (r OpsRoofs) of(which Roof) float64 {
	return map[Roof]float64{RoofRead: r.Read, RoofCopy: r.Copy, RoofF32: r.F32, RoofBF16: r.BF16}[which]
}

// larger returns the larger of each rate, because other load can only make a measured roof too
// low.
func (r OpsRoofs) larger(o OpsRoofs) OpsRoofs {
	return OpsRoofs{Read: max(r.Read, o.Read), Copy: max(r.Copy, o.Copy), F32: max(r.F32, o.F32), BF16: max(r.BF16, o.BF16)}
}

// measureOpsRoofs measures each roof for about d. A device that cannot measure itself has none.
func measureOpsRoofs(dev engine.Device, d time.Duration) (OpsRoofs, error) {
	meter, ok := dev.(engine.Meter)
	if !ok {
		return OpsRoofs{}, nil
	}
	known, err := MeasureRoofs(meter, d)
	if err != nil {
		return OpsRoofs{}, err
	}
	r := OpsRoofs{Read: known.Read, F32: known.Ops[KindF32], BF16: known.Ops[KindBF16]}
	r.Copy, err = copyRoof(dev, d, known.Read)
	return r, err
}

// Bytes of the copies that measure the roof.
const (
	mostCopied  = 1 << 30
	leastCopied = 1 << 20
)

// copyRoof returns the rate of copies from one buffer of a GPU to another. A CPU copies on one
// thread, so its roof is that of reading by all threads.
func copyRoof(dev engine.Device, d time.Duration, read float64) (rate float64, err error) {
	info, err := dev.Info()
	if err != nil || info.Kind == "cpu" {
		return read, err
	}
	size := uint64(mostCopied)
	for size > leastCopied && size > info.BytesFree/4 {
		size /= 2
	}
	source, err := dev.Alloc(size, engine.Workspace)
	if err != nil {
		return 0, fmt.Errorf("copy roof: %w", err)
	}
	defer func() { err = errors.Join(err, source.Free()) }()
	target, err := dev.Alloc(size, engine.Workspace)
	if err != nil {
		return 0, fmt.Errorf("copy roof: %w", err)
	}
	defer func() { err = errors.Join(err, target.Free()) }()
	for begin := time.Now(); time.Since(begin) < d || rate == 0; {
		one := time.Now()
		if err := source.CopyTo(target, 0, 0, size); err != nil {
			return 0, fmt.Errorf("copy roof: %w", err)
		}
		rate = max(rate, 2*float64(size)/time.Since(one).Seconds())
	}
	return rate, nil
}
