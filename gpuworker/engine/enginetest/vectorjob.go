package enginetest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// Job is one training, with the chunks in which its rows are written and the slices in which it
// runs.
type Job struct {
	Config engine.TrainerConfig
	Rows   []byte
	Given  []byte // codewords of Init Given
	Shape  string // of the rows
	Chunk  int    // rows a Write
	Slice  engine.Slice
}

// String describes the job in a failure.
func (j *Job) String() string {
	return fmt.Sprintf("%s rows in chunks of %d and slices of %+v: %+v", j.Shape, j.Chunk, j.Slice, j.Config)
}

// Outcome has all results of a training.
type Outcome struct {
	Rounds    []engine.Round
	Reason    engine.Reason
	IDs       []uint32
	Loads     []uint64
	Variances []float64
	Codewords []byte
	State     []byte
}

// RandomJob returns a small valid training. Equal seeds give equal jobs.
func RandomJob(seed uint64) *Job {
	r := rand.New(rand.NewPCG(seed, 12))
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	book := engine.CodebookDesc{
		Dimension: one(1, 2, 3, 5, 8, 13, 16, 31, 33, 64, 100), Codewords: one(1, 2, 3, 4, 7, 16, 17, 33, 64), Subspaces: 1,
		Type: engine.Element(r.IntN(3)), Metric: engine.Metric(one(0, 0, 0, 0, 1, 2)),
	}
	cfg := engine.TrainerConfig{
		Rows: uint64(book.Codewords + one(0, 1, 3, 50, 200, 700)), Element: engine.Element(r.IntN(int(engine.ElementCount))),
		Init: engine.Init(r.IntN(4)), Seed: r.Uint64(), MaxIterations: one(0, 1, 2, 5, 9), EnergyTolerance: -1, MinChanges: -1,
		StableRounds: one(1, 1, 2, 3),
	}
	cfg.Annealing = engine.Annealing{Temperature: math.NaN(), CoolingRate: math.NaN(), MaintenanceInterval: -1} // Lloyd reads none of it
	if book.Metric == engine.L2 {
		if r.IntN(2) == 0 {
			book.Kind = engine.Product
			for book.Subspaces = book.Dimension - r.IntN(book.Dimension); book.Dimension%book.Subspaces != 0; book.Subspaces++ {
			}
		}
		if r.IntN(2) == 0 {
			cfg.Algorithm, cfg.Annealing = engine.Annealed, randomAnnealing(r)
		}
	}
	if book.Metric == engine.InnerProduct && (cfg.Init == engine.KMeansPlusPlus || cfg.Init == engine.Farthest) {
		cfg.Init = engine.Random
	}
	if r.IntN(4) == 0 {
		cfg.Rows += uint64(one(4096, 5000)) // more than a block of the energy
		book.Codewords, book.Dimension, book.Subspaces, book.Kind = min(book.Codewords, 16), min(book.Dimension, 5), 1, engine.Flat
	}
	if r.IntN(3) == 0 {
		cfg.EnergyTolerance = []float64{0, 1e-3, 0.5}[r.IntN(3)]
	}
	if r.IntN(3) == 0 {
		cfg.MinChanges = int64(one(0, 5))
	}
	cfg.Codebook = book
	s := rowShapes[r.IntN(len(rowShapes))]
	return NewJob(r, cfg, s)
}

// NewJob makes rows of a shape for a configuration, and chooses chunks and slices.
func NewJob(r *rand.Rand, cfg engine.TrainerConfig, s shape) *Job {
	n, d := int(cfg.Rows), cfg.Codebook.Dimension
	j := &Job{Config: cfg, Shape: s.name, Rows: rowsOf(s, r, cfg.Element, cfg.Codebook.Type, n, d)}
	j.Chunk = []int{1, 7, 64, n}[r.IntN(4)]
	j.Slice = engine.Slice{Rounds: 1 + r.IntN(3), Budget: []time.Duration{0, 1, time.Millisecond}[r.IntN(3)]}
	if cfg.Init == engine.Given {
		given := make([]float64, cfg.Codebook.Codewords*d)
		for i := range given {
			given[i] = vq.Round(cfg.Codebook.Type, r.NormFloat64()*3)
		}
		j.Given = vq.Encode(cfg.Codebook.Type, given)
	}
	return j
}

func randomAnnealing(r *rand.Rand) engine.Annealing {
	of := func(v ...float64) float64 { return v[r.IntN(len(v))] }
	return engine.Annealing{
		Temperature: of(1, 0.7), CoolingRate: of(0, 0.05, 0.3), LearningRate: of(1, 0.5, 0.2), Momentum: of(0, 0.3, 0.9),
		Trim: of(0, 0.1, 0.5), StepLimit: of(0, 0.05, 3), MaintenanceInterval: r.IntN(3), MergeDistance: of(0, 0.5, 5), SplitLoad: of(0, 1.1, 2),
	}
}

// cornerJobs are jobs that RandomJob rarely makes, by name.
func cornerJobs() map[string]*Job {
	r := rand.New(rand.NewPCG(3, 4))
	out := map[string]*Job{}
	add := func(name string, s int, n, d, k int, change func(*engine.TrainerConfig)) {
		cfg := engine.TrainerConfig{
			Codebook: engine.CodebookDesc{Dimension: d, Codewords: k, Subspaces: 1}, Rows: uint64(n), MaxIterations: 3,
			EnergyTolerance: -1, MinChanges: -1, StableRounds: 1, Seed: math.MaxUint64,
		}
		if change != nil {
			change(&cfg)
		}
		out[name] = NewJob(r, cfg, rowShapes[s])
	}
	add("one row, one codeword, one element", 0, 1, 1, 1, nil)
	add("as many codewords as rows", 0, 300, 3, 300, nil)
	add("257 codewords", 0, 700, 4, 257, nil)
	add("wide rows", 0, 40, 4097, 5, nil)
	add("three blocks of rows", 0, 2*4096+1, 2, 3, nil)
	add("one subspace an element", 0, 100, 12, 8, func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 12 })
	add("F32 rows in BF16 codewords", 5, 200, 6, 9, func(c *engine.TrainerConfig) { c.Codebook.Type = engine.VectorBF16 })
	add("subnormal rows, farthest first", 7, 100, 3, 20, func(c *engine.TrainerConfig) { c.Init = engine.Farthest })
	add("the largest rows", 10, 100, 9, 4, func(c *engine.TrainerConfig) { c.Init = engine.KMeansPlusPlus })
	add("equal rows annealed", 3, 50, 4, 6, func(c *engine.TrainerConfig) {
		c.Algorithm, c.Annealing = engine.Annealed, engine.Annealing{Temperature: 1, LearningRate: 1, MaintenanceInterval: 1, MergeDistance: 1, SplitLoad: 1.5}
	})
	add("many codewords of many rows", 0, 40000, 2, 1500, nil)
	add("many codewords annealed", 0, 20000, 2, 1500, func(c *engine.TrainerConfig) {
		c.Algorithm, c.Annealing = engine.Annealed, engine.Annealing{
			Temperature: 1, LearningRate: 0.5, Trim: 0.2, MaintenanceInterval: 2, MergeDistance: 0.02, SplitLoad: 1.5,
		}
	})
	add("many codewords of 24 elements", 0, 3000, 24, 1500, nil)
	add("zeros by cosine", 4, 20, 4, 3, func(c *engine.TrainerConfig) { c.Codebook.Metric = engine.Cosine })
	return out
}

// reference returns the expected outcome of the job, and the state before each round.
func (j *Job) reference() (out Outcome, states [][]byte, err error) {
	tr, err := vq.New(j.Config, vq.Decode(j.Config.Element, j.Rows), vq.Decode(j.Config.Codebook.Type, j.Given))
	if err != nil {
		return out, nil, fmt.Errorf("reference: %w", err)
	}
	for tr.Reason() == engine.Unfinished {
		states = append(states, tr.State())
		r, err := tr.Round()
		if err != nil {
			return out, nil, err
		}
		out.Rounds = append(out.Rounds, r)
	}
	out.Reason, out.IDs, out.Loads, out.Codewords, out.State = tr.Reason(), tr.IDs(), tr.Loads(), tr.Codewords(), tr.State()
	out.Variances = tr.Variances()
	return out, states, nil
}

// Check trains on the device and returns an error for the first difference from the reference.
func (j *Job) Check(dev engine.Vectors) error {
	want, _, err := j.reference()
	if err != nil {
		return err
	}
	got, err := j.Train(dev, nil)
	if err != nil {
		return err
	}
	return Differ(got, want)
}

// CheckResumed trains from each state of the reference.
func (j *Job) CheckResumed(dev engine.Vectors) error {
	want, states, err := j.reference()
	if err != nil {
		return err
	}
	for i, state := range states {
		got, err := j.Train(dev, state)
		if err != nil {
			return fmt.Errorf("from round %d: %w", i, err)
		}
		rest := want
		rest.Rounds = want.Rounds[i:]
		if err := Differ(got, rest); err != nil {
			return fmt.Errorf("from round %d: %w", i, err)
		}
	}
	return nil
}

// CheckPastItsEnd resumes with a limit of updates that the state has passed: one round reports the
// state, and is the last.
func (j *Job) CheckPastItsEnd(dev engine.Vectors) error {
	_, states, err := j.reference()
	last := len(states) - 1
	if err != nil || last < 2 {
		return err
	}
	shorter := *j
	shorter.Config.MaxIterations = last - 1
	got, err := shorter.Train(dev, states[last])
	if err != nil {
		return err
	}
	if len(got.Rounds) != 1 || got.Reason == engine.Unfinished {
		return fmt.Errorf("after %d of %d updates: %d more rounds, ended for reason %d", last, last-1, len(got.Rounds), got.Reason)
	}
	return nil
}

// Differ returns an error for the first difference from the wanted outcome. Numbers are compared by
// their bits.
func Differ(got, want Outcome) error {
	for i := range min(len(got.Rounds), len(want.Rounds)) {
		if g, w := bitsOf(got.Rounds[i]), bitsOf(want.Rounds[i]); g != w {
			return fmt.Errorf("round %d is %+v, want %+v", i, got.Rounds[i], want.Rounds[i])
		}
	}
	switch {
	case len(got.Rounds) != len(want.Rounds):
		return fmt.Errorf("%d rounds, want %d", len(got.Rounds), len(want.Rounds))
	case got.Reason != want.Reason:
		return fmt.Errorf("ended for reason %d, want %d", got.Reason, want.Reason)
	case !slices.Equal(got.IDs, want.IDs):
		return fmt.Errorf("ids differ, first of row and subspace %d", firstDifference(got.IDs, want.IDs))
	case !slices.Equal(got.Loads, want.Loads):
		return fmt.Errorf("loads differ, first of codeword %d", firstDifference(got.Loads, want.Loads))
	case !slices.EqualFunc(got.Variances, want.Variances, sameBits):
		return fmt.Errorf("variances differ, first of codeword %d", firstDifference(got.Variances, want.Variances))
	case !bytes.Equal(got.Codewords, want.Codewords):
		return fmt.Errorf("codewords differ, first in byte %d", firstDifference(got.Codewords, want.Codewords))
	case !bytes.Equal(got.State, want.State):
		return fmt.Errorf("states of %d and %d bytes differ, first in byte %d", len(got.State), len(want.State), firstDifference(got.State, want.State))
	}
	return nil
}

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

func bitsOf(r engine.Round) [9]uint64 {
	return [9]uint64{
		uint64(r.Iteration), math.Float64bits(r.Energy), uint64(r.Changes), math.Float64bits(r.Temperature), uint64(r.Empty),
		uint64(r.Merged), uint64(r.Split), math.Float64bits(r.Imbalance),
	}
}

func firstDifference[T comparable](a, b []T) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
