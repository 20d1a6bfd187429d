package safeguards

import (
	"errors"
	"fmt"
	"time"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string        // paths of the programs
	Streams           int           // at once
	Rate              float64       // tokens a second that the engine gives all streams together at most
	Tokens            int           // of each request
	Prompt            int           // tokens of each
	Duration          time.Duration // of a turn, and what its last requests take
	Rounds            int
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	bound := func(flag string, n, low, top float64) {
		if !(n >= low && n <= top) {
			wrong = append(wrong, fmt.Errorf("%s %g: want %g to %g", flag, n, low, top))
		}
	}
	bound("--streams", float64(c.Streams), 1, 1024)
	bound("--rate", c.Rate, float64(c.Streams), 1e7)
	bound("--tokens", float64(c.Tokens), 1, 1<<20)
	bound("--prompt", float64(c.Prompt), 1, 1<<10)
	bound("--rounds", float64(c.Rounds), 1, 1<<10)
	if c.Duration < 100*time.Millisecond || c.Duration > time.Hour {
		wrong = append(wrong, fmt.Errorf("--duration %v: want 100ms to 1h", c.Duration))
	}
	return errors.Join(wrong...)
}

// device is the sim engine's options: every step takes as long, whatever is in it.
func (c *Config) device() string {
	return fmt.Sprintf("sim:step=%v,prefill=0s,decode=0s", time.Duration(float64(c.Streams)/c.Rate*float64(time.Second)))
}
