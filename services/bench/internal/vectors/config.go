package vectors

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Errors of a run that is void.
var (
	// ErrTooFast is returned if a figure is above the roof measured in the same run.
	ErrTooFast = errors.New("a share is above 100 %")
	// ErrWrong is returned if codes differ from float64's, or calls return other bytes than the
	// device.
	ErrWrong = errors.New("vectors are wrong")
)

// Parts of a run, in their order.
const (
	PartEncode    = "encode"    // flat codebooks, rows in the caller's memory
	PartProduct   = "product"   // product codebooks, rows in the caller's memory
	PartIteration = "iteration" // rounds of a training, rows on the device; compared with an assignment alone
	PartWrite     = "write"     // rows to a trainer
	PartTrain     = "train"     // whole trainings, from the trainer to the codebook
	PartStream    = "stream"    // rounds of a training whose rows do not fit the device
)

// Parts returns all parts.
func Parts() []string {
	return []string{PartEncode, PartProduct, PartIteration, PartWrite, PartTrain, PartStream}
}

// Config configures a run.
type Config struct {
	Parts      []string
	Dimension  int
	Codewords  []int
	Subspaces  int // of product codebooks, each with 256 codewords
	Rows       int // of every part except train; 0: depends on codewords and device
	Types      []engine.Element
	Scale      float64       // of the rows of every training except large; 0: depends on the device
	Iterations int           // maximum of updates of these trainings; 0: depends on the device
	Repeat     int           // maximum of measurements of a row
	Budget     time.Duration // for these measurements; at least one is made
	Seed       uint64
	RoofTime   time.Duration // for each measurement of a roof
	Target     string        // a worker or scheduler that encodes and trains too; empty: none
	InFlight   int           // concurrent calls
}

// Limits bound the memory and time of a run.
const (
	maxRows   = 1 << 26
	maxRepeat = 1000
	maxCalls  = 64
)

var typeNames = map[engine.Element]string{
	engine.VectorF32: "f32", engine.VectorF16: "f16", engine.VectorBF16: "bf16", engine.VectorU8: "u8", engine.VectorI8: "i8",
}

// ParseType parses f32 or f16, the types that rows are drawn as.
func ParseType(name string) (engine.Element, error) {
	for _, e := range []engine.Element{engine.VectorF32, engine.VectorF16} {
		if typeNames[e] == name {
			return e, nil
		}
	}
	return 0, fmt.Errorf("--type %q: want f32 or f16", name)
}

// Validate returns every error of the configuration.
func (c *Config) Validate() error {
	var wrong []error
	check := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	for _, part := range c.Parts {
		if !slices.Contains(Parts(), part) {
			wrong = append(wrong, fmt.Errorf("--parts %q: want %s", part, strings.Join(Parts(), ", ")))
		}
	}
	if len(c.Parts) == 0 || len(c.Types) == 0 || len(c.Codewords) == 0 {
		wrong = append(wrong, errors.New("--parts, --type and --codewords list one at least"))
	}
	check("--dimension", c.Dimension, 1, engine.MaxDimension)
	for _, k := range c.Codewords {
		check("--codewords", k, 2, engine.MaxCodewords)
	}
	check("--subspaces", c.Subspaces, 1, engine.MaxDimension)
	if slices.Contains(c.Parts, PartProduct) && c.Subspaces > 0 && c.Dimension%c.Subspaces != 0 {
		wrong = append(wrong, fmt.Errorf("--subspaces %d: want a divisor of the dimension, %d", c.Subspaces, c.Dimension))
	}
	check("--rows", c.Rows, 0, maxRows)
	if !(c.Scale >= 0 && c.Scale <= 1) {
		wrong = append(wrong, fmt.Errorf("--scale %g: want 0 to 1", c.Scale))
	}
	check("--iterations", c.Iterations, 0, engine.MaxIterations)
	check("--repeat", c.Repeat, 1, maxRepeat)
	check("--in-flight", c.InFlight, 1, maxCalls)
	for name, d := range map[string]time.Duration{"--budget": c.Budget, "--roof-time": c.RoofTime} {
		if d < time.Millisecond || d > time.Hour {
			wrong = append(wrong, fmt.Errorf("%s %v: want 1ms to 1h", name, d))
		}
	}
	return errors.Join(wrong...)
}

// Defaults: tenths of a second of work for a CPU, and enough rows for a GPU that its assignment
// takes longer than its launch.
const (
	cpuProducts, gpuProducts     = 1 << 26, 1 << 34 // rows * codewords
	cpuRows, gpuRows             = 1 << 18, 1 << 22
	cpuScale                     = 0.02
	cpuIterations, gpuIterations = 2, engine.MaxIterations
)

// complete sets the defaults that depend on the device.
func (c *Config) complete(kind string) {
	cpu := kind != "cuda"
	if c.Scale == 0 {
		c.Scale = 1
		if cpu {
			c.Scale = cpuScale
		}
	}
	if c.Iterations == 0 {
		c.Iterations = gpuIterations
		if cpu {
			c.Iterations = cpuIterations
		}
	}
}

// rows returns the number of rows for a codebook with a number of codewords.
func (c *Config) rows(kind string, codewords int) int {
	if c.Rows > 0 {
		return c.Rows
	}
	if kind == "cuda" {
		return min(gpuProducts/codewords, gpuRows)
	}
	return max(min(cpuProducts/codewords, cpuRows), 1<<10)
}
