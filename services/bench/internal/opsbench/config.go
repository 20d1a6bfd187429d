package opsbench

import (
	"errors"
	"fmt"
	"time"
)

// ErrWrong says that an operation gave something else than it should.
var ErrWrong = errors.New("an operation is wrong")

// Config of a run.
type Config struct {
	Squares  []int         // rows, columns and inner size of each matmul
	Width    int           // rows and columns of matvec's matrix and of what is done by row or element
	Keys     []int         // rows and keys of each attention
	Repeat   int           // most measurements of an operation on a device
	Budget   time.Duration // for these measurements; one is made however long it takes
	RoofTime time.Duration // for each roof, before and after
}

// Limits keep a run's memory and time within reason.
const (
	maxSquare = 16384
	maxKeys   = 32768
	maxRepeat = 1000
)

// headDim is the width of a head in rope and attention, heads how many attention has.
const (
	headDim = 128
	heads   = 32
)

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	check := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	for _, n := range c.Squares {
		check("--squares", n, 1, maxSquare)
	}
	check("--width", c.Width, headDim, maxSquare)
	if c.Width%headDim != 0 {
		wrong = append(wrong, fmt.Errorf("--width %d: want a multiple of %d, the width of a head", c.Width, headDim))
	}
	for _, n := range c.Keys {
		check("--keys", n, 1, maxKeys)
	}
	check("--repeat", c.Repeat, 1, maxRepeat)
	for name, d := range map[string]time.Duration{"--budget": c.Budget, "--roof-time": c.RoofTime} {
		if d < time.Millisecond || d > time.Minute {
			wrong = append(wrong, fmt.Errorf("%s %v: want 1ms to 1m", name, d))
		}
	}
	return errors.Join(wrong...)
}
