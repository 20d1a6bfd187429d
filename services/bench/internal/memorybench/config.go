package memorybench

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ErrFailed says that a check does not hold.
var ErrFailed = errors.New("a check of memory failed")

// Config of a run.
type Config struct {
	Largest  uint64        // bytes of the largest copy and pooled buffer
	Piece    uint64        // bytes that all memory is asked for in
	Contexts int           // that ask for memory together
	Repeat   int           // most measurements of a figure
	Budget   time.Duration // for these measurements; three are always made
	// Ceiling says that the device was opened with a ceiling of its own: contexts of a CPU meet no other.
	Ceiling bool
}

// Setup is how a run reaches its device and the programs beside it.
type Setup struct {
	// Open opens the device once more, with the engine's pool of freed bytes or without one.
	Open func(pool bool) (engine.Device, error)
	// Driver is the command line of the program that measures the driver itself; empty: there is none.
	Driver []string
	// Peer is the command line of a program that opens the same device, calls Peer and ends.
	Peer []string
}

// Limits keep a run within reason.
const (
	smallest    = 1 << 10 // bytes of a copy
	mostBytes   = 1 << 36
	mostRepeat  = 1000
	mostContext = 16
)

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	size := func(name string, value, low uint64) {
		if value < low || value > mostBytes {
			wrong = append(wrong, fmt.Errorf("%s %s: want %s to %s", name, sizeName(value), sizeName(low), sizeName(mostBytes)))
		}
	}
	size("--largest", c.Largest, smallest)
	size("--piece", c.Piece, leastPiece)
	if c.Contexts < 2 || c.Contexts > mostContext {
		wrong = append(wrong, fmt.Errorf("--contexts %d: want 2 to %d", c.Contexts, mostContext))
	}
	if c.Repeat < 1 || c.Repeat > mostRepeat {
		wrong = append(wrong, fmt.Errorf("--repeat %d: want 1 to %d", c.Repeat, mostRepeat))
	}
	if c.Budget < time.Millisecond || c.Budget > time.Minute {
		wrong = append(wrong, fmt.Errorf("--budget %v: want 1ms to 1m", c.Budget))
	}
	return errors.Join(wrong...)
}

// sizeName is a size as rows are called by it: 1KiB, 64MiB, or 1000B.
func sizeName(bytes uint64) string {
	for _, unit := range []struct {
		suffix string
		bytes  uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= unit.bytes && bytes%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/unit.bytes, unit.suffix)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}
