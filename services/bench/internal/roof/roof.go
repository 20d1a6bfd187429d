package roof

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Kind is the roof that a product of some weight type runs under.
type Kind int

// Kinds of products.
const (
	Int8 Kind = iota // quantised weights
	BF16
	F32 // F32 and F16 weights
	Kinds
)

// String is the name of the kind, in lower case.
func (k Kind) String() string { return [...]string{"int8", "bf16", "f32"}[k] }

// Roofs are rates a second; 0 is not known.
type Roofs struct {
	Read float64        // bytes
	Ops  [Kinds]float64 // operations
}

// Measure measures every roof, each for about d.
func Measure(m engine.Meter, d time.Duration) (Roofs, error) {
	var r Roofs
	for _, roof := range []struct {
		what engine.Measure
		rate *float64
	}{
		{engine.MeasureReadBytes, &r.Read}, {engine.MeasureInt8Ops, &r.Ops[Int8]},
		{engine.MeasureBF16Ops, &r.Ops[BF16]}, {engine.MeasureF32Ops, &r.Ops[F32]},
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

// MeasureRead measures the roof of reading alone, for about d. 0: the device does not know it.
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

// Max takes the larger of each rate: what disturbs a measurement only makes a roof too low.
func (r Roofs) Max(o Roofs) Roofs {
	out := Roofs{Read: max(r.Read, o.Read)}
	for k := range out.Ops {
		out.Ops[k] = max(r.Ops[k], o.Ops[k])
	}
	return out
}

// Ops are operations by kind.
type Ops [Kinds]float64

// Sum is all operations.
func (o Ops) Sum() (sum float64) {
	for _, n := range o {
		sum += n
	}
	return sum
}

// Kind is the kind of most operations.
func (o Ops) Kind() Kind {
	best := Kind(0)
	for k := range Kinds {
		if o[k] > o[best] {
			best = k
		}
	}
	return best
}

// Share is the time that the operations take at the roof over the time they took, in seconds; 0 when a roof is not
// known. It is above 1 when the roof was measured too low or the work counted too high.
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
