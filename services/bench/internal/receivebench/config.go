package receivebench

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string        `json:"-"` // paths of the programs, which say nothing of what was measured
	Model             string        // file of the model; empty: a small one without text
	Requests          int           // large ones, at once
	Bytes             int           // of each
	Connections       int           // that they share
	Memory            uint64        // that each program may ask the system for; 0: as much as there is
	Measure           time.Duration // how long small requests are measured alone, before
	Timeout           time.Duration // after which a large request without a status is an error
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	bound := func(flag string, n, low, top int) {
		if n < low || n > top {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", flag, n, low, top))
		}
	}
	bound("--requests", c.Requests, 1, 100_000)
	bound("--bytes", c.Bytes, 1<<10, rpc.DefaultMaxReceiveBytes)
	bound("--connections", c.Connections, 1, 10_000)
	if c.Memory != 0 && c.Memory < 128<<20 {
		wrong = append(wrong, fmt.Errorf("--memory %d: want at least 128 MiB, in which a program starts, or 0", c.Memory))
	}
	for flag, d := range map[string]time.Duration{"--measure": c.Measure, "--timeout": c.Timeout} {
		if d <= 0 || d > time.Hour {
			wrong = append(wrong, fmt.Errorf("%s %v: want above 0, at most 1h", flag, d))
		}
	}
	return errors.Join(wrong...)
}
