package hostile

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string        `json:"-"` // paths of the programs, which say nothing of what was measured
	Self              string        `json:"-"` // path of the program that has Peer and Burn as commands
	Connections       int           // hostile ones, in each round
	Rate              float64       // of them a second
	From              string        // address that they come from
	Calls             float64       // of the good client, a second
	Tokens            int           // of each
	Rounds            int           // alone, hostile, harmless
	Settle            time.Duration // between measurements, in which what is left ends
}

// Window is how long each measurement takes.
func (c *Config) Window() time.Duration {
	return time.Duration(float64(c.Connections) / c.Rate * float64(time.Second))
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	bound := func(flag string, n, low, top float64) {
		if n < low || n > top {
			wrong = append(wrong, fmt.Errorf("%s %g: want %g to %g", flag, n, low, top))
		}
	}
	bound("--connections", float64(c.Connections), 1, 1e6)
	bound("--rate", c.Rate, 1, 1e5)
	bound("--calls", c.Calls, 1, 1e4)
	bound("--tokens", float64(c.Tokens), 1, 1000)
	bound("--rounds", float64(c.Rounds), 1, 100)
	if from, err := netip.ParseAddr(c.From); err != nil || !from.IsLoopback() || !from.Is4() {
		wrong = append(wrong, fmt.Errorf("--from %q: want an address of loopback, such as 127.0.0.2", c.From))
	}
	if c.Settle < 0 || c.Settle > time.Hour {
		wrong = append(wrong, fmt.Errorf("--settle %v: want 0 to 1h", c.Settle))
	}
	return errors.Join(wrong...)
}
