package opsbench

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/roof"
)

// Roof names what bounds an operation.
type Roof string

// Roofs. Read and Copy are of bytes, the others of operations.
const (
	Read Roof = "read"
	Copy Roof = "copy" // reads and writes counted together
	F32  Roof = "f32"
	BF16 Roof = "bf16"
)

// bytes says whether rates under this roof are counted in bytes.
func (r Roof) bytes() bool { return r == Read || r == Copy }

// Roofs are rates a second; 0: not known.
type Roofs struct {
	Read float64 `json:"read_bytes"`
	Copy float64 `json:"copy_bytes"`
	F32  float64 `json:"f32_ops"`
	BF16 float64 `json:"bf16_ops"`
}

func (r Roofs) of(which Roof) float64 {
	return map[Roof]float64{Read: r.Read, Copy: r.Copy, F32: r.F32, BF16: r.BF16}[which]
}

// larger takes the larger of each rate: what disturbs a measurement only makes a roof too low.
func (r Roofs) larger(o Roofs) Roofs {
	return Roofs{Read: max(r.Read, o.Read), Copy: max(r.Copy, o.Copy), F32: max(r.F32, o.F32), BF16: max(r.BF16, o.BF16)}
}

// measureRoofs measures a device, each roof for about d. A device that does not measure itself has none.
func measureRoofs(dev engine.Device, d time.Duration) (Roofs, error) {
	meter, ok := dev.(engine.Meter)
	if !ok {
		return Roofs{}, nil
	}
	known, err := roof.Measure(meter, d)
	if err != nil {
		return Roofs{}, err
	}
	r := Roofs{Read: known.Read, F32: known.Ops[roof.F32], BF16: known.Ops[roof.BF16]}
	r.Copy, err = copyRoof(dev, d, known.Read)
	return r, err
}

// Bytes of the copies that the roof is taken from.
const (
	mostCopied  = 1 << 30
	leastCopied = 1 << 20
)

// copyRoof is the rate at which one buffer of a GPU is copied to another. A processor's copy runs on one thread, so that
// reading by all of them is its roof.
func copyRoof(dev engine.Device, d time.Duration, read float64) (rate float64, err error) {
	info, err := dev.Info()
	if err != nil || info.Kind == "cpu" {
		return read, err
	}
	size := uint64(mostCopied)
	for size > leastCopied && size > info.BytesFree/4 {
		size /= 2
	}
	from, err := dev.Alloc(size, engine.Workspace)
	if err != nil {
		return 0, fmt.Errorf("copy roof: %w", err)
	}
	defer func() { err = errors.Join(err, from.Free()) }()
	to, err := dev.Alloc(size, engine.Workspace)
	if err != nil {
		return 0, fmt.Errorf("copy roof: %w", err)
	}
	defer func() { err = errors.Join(err, to.Free()) }()
	for begin := time.Now(); time.Since(begin) < d || rate == 0; {
		one := time.Now()
		if err := from.CopyTo(to, 0, 0, size); err != nil {
			return 0, fmt.Errorf("copy roof: %w", err)
		}
		rate = max(rate, 2*float64(size)/time.Since(one).Seconds())
	}
	return rate, nil
}
