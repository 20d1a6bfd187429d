package idlebench

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string        // paths of the programs
	Sizes             []int         // numbers of workers
	Settle            time.Duration // left alone before it is watched
	Duration          time.Duration // watched at each size
}

// most is how many workers one machine is asked to run; each is a process of some 20 MB.
const most = 2000

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	if len(c.Sizes) == 0 {
		wrong = append(wrong, errors.New("--sizes names none: want numbers of workers, such as 1,100,300"))
	}
	for _, n := range c.Sizes {
		if n < 1 || n > most {
			wrong = append(wrong, fmt.Errorf("--sizes %d: want 1 to %d", n, most))
		}
	}
	if c.Settle < 0 || c.Settle > time.Hour {
		wrong = append(wrong, fmt.Errorf("--settle %v: want 0 to 1h", c.Settle))
	}
	if c.Duration < time.Second || c.Duration > time.Hour {
		wrong = append(wrong, fmt.Errorf("--duration %v: want 1s to 1h, since processor time is counted in hundredths", c.Duration))
	}
	return errors.Join(wrong...)
}

func (c *Config) largest() int { return slices.Max(c.Sizes) }
