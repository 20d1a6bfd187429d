package vq

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Training is one training between two rounds.
type Training struct {
	cfg    engine.TrainerConfig
	spaces []*space
	reason engine.Reason

	iteration   int64
	temperature float64
	stable      int     // stable rounds in a row
	energy      float64 // of the last round
	begun       state   // before the last round, which a resumed training repeats
}

// New seeds a training of rows, (cfg.Rows, Dimension). given are the codewords of Init Given.
func New(cfg engine.TrainerConfig, rows, given []float64) (*Training, error) {
	t, err := bare(cfg, rows)
	if err != nil {
		return nil, err
	}
	if cfg.Init == engine.Given && len(given) != cfg.Codebook.Codewords*cfg.Codebook.Dimension {
		return nil, fmt.Errorf("%d given values, want %d codewords of %d: %w", len(given), cfg.Codebook.Codewords,
			cfg.Codebook.Dimension, engine.ErrInvalid)
	}
	for i, s := range t.spaces {
		var own []float64
		if cfg.Init == engine.Given {
			own = slices.Clone(given[i*cfg.Codebook.Codewords*s.d:][:cfg.Codebook.Codewords*s.d])
		}
		s.seed(own)
	}
	if cfg.Algorithm == engine.Annealed {
		t.temperature = cfg.Annealing.Temperature
	}
	t.begun = t.state()
	return t, nil
}

// bare returns a training without codewords.
func bare(cfg engine.TrainerConfig, rows []float64) (*Training, error) {
	if err := rules.CheckTrainer(cfg); err != nil {
		return nil, err
	}
	if uint64(len(rows)) != cfg.Rows*uint64(cfg.Codebook.Dimension) {
		return nil, fmt.Errorf("%d values, want %d rows of %d: %w", len(rows), cfg.Rows, cfg.Codebook.Dimension, engine.ErrInvalid)
	}
	if err := Finite(rows, cfg.Codebook.Dimension, 0); err != nil {
		return nil, err
	}
	t := &Training{cfg: cfg}
	rows = Rows(cfg.Codebook.Metric, cfg.Codebook.Dimension, rows)
	for i := range cfg.Codebook.Subspaces {
		s := newSpace(&t.cfg, i, rows)
		for j := range s.d {
			if a := s.largest(j); cfg.Codebook.Metric == engine.L2 && !Holds(cfg.Codebook.Type, a) {
				return nil, fmt.Errorf("column %d holds %g, which codewords of type %d do not: %w", i*s.d+j, a, cfg.Codebook.Type, engine.ErrInvalid)
			}
		}
		t.spaces = append(t.spaces, s)
	}
	return t, nil
}

// Reason returns why the training ended, or Unfinished.
func (t *Training) Reason() engine.Reason { return t.reason }

// Round assigns every row and computes the measures of the round. It then ends the training or
// updates the codebook. ErrPrecondition: the training has ended.
func (t *Training) Round() (engine.Round, error) {
	if t.reason != engine.Unfinished {
		return engine.Round{}, fmt.Errorf("the training has ended: %w", engine.ErrPrecondition)
	}
	t.begun = t.state()
	r := engine.Round{Iteration: t.iteration, Temperature: t.temperature}
	total, uneven := 0.0, 0.0
	for _, s := range t.spaces {
		changes, energy := s.assign()
		r.Changes += changes
		r.Empty += int64(len(s.empty()))
		total += energy
		uneven += s.imbalance()
	}
	n := float64(t.cfg.Rows)
	r.Energy, r.Imbalance = total/n, uneven/float64(len(t.spaces))
	if t.isStable(r) {
		t.stable++
	} else {
		t.stable = 0
	}
	t.energy = r.Energy
	switch {
	case t.stable >= t.cfg.StableRounds:
		t.reason = engine.Converged
	case t.iteration >= int64(t.cfg.MaxIterations): // a resumed state may have passed the limit
		t.reason = engine.ReachedMaxIterations
	default:
		t.update(&r)
	}
	return r, nil
}

// isStable reports whether little has changed since the round before.
func (t *Training) isStable(r engine.Round) bool {
	if r.Iteration == 0 {
		return false
	}
	byEnergy, byChanges := t.cfg.EnergyTolerance >= 0, t.cfg.MinChanges >= 0
	return byEnergy && math.Abs(t.energy-r.Energy) <= t.cfg.EnergyTolerance*math.Abs(t.energy) ||
		byChanges && r.Changes <= t.cfg.MinChanges ||
		!byEnergy && !byChanges && t.cfg.Algorithm == engine.Lloyd && r.Changes == 0
}

func (t *Training) update(r *engine.Round) {
	a := t.cfg.Annealing
	if t.cfg.Algorithm == engine.Lloyd {
		a = engine.Annealing{} // Lloyd does not use it
	}
	maintenance := a.MaintenanceInterval > 0 && (t.iteration+1)%int64(max(a.MaintenanceInterval, 1)) == 0
	for _, s := range t.spaces {
		if t.cfg.Algorithm == engine.Lloyd {
			s.lloyd()
			continue
		}
		s.anneal(t.temperature)
		if maintenance {
			merged, split := s.maintain()
			r.Merged += merged
			r.Split += split
		}
	}
	if r.Merged+r.Split > 0 {
		t.stable = 0
	}
	t.iteration++
	t.temperature *= 1 - a.CoolingRate
}

// imbalance returns codewords * sum of squared loads / rows^2.
func (s *space) imbalance() float64 {
	squares := 0.0
	for _, n := range s.loads {
		squares += float64(float64(n) * float64(n))
	}
	n := float64(s.n)
	return float64(len(s.loads)) * squares / n / n
}

// Codewords returns the bytes of the codebook.
func (t *Training) Codewords() []byte {
	var out []byte
	for _, s := range t.spaces {
		out = append(out, Encode(t.cfg.Codebook.Type, s.c)...)
	}
	return out
}

// IDs returns the ids of the last round, (rows, subspaces), and nil before the first.
func (t *Training) IDs() []uint32 {
	if t.spaces[0].loads == nil {
		return nil
	}
	out := make([]uint32, 0, t.cfg.Rows*uint64(len(t.spaces)))
	for i := range t.spaces[0].n {
		for _, s := range t.spaces {
			out = append(out, s.ids[i])
		}
	}
	return out
}

// Variances returns the mean distances of the codewords' rows in the last round, (subspaces,
// codewords), and nil before the end.
func (t *Training) Variances() (out []float64) {
	if t.reason == engine.Unfinished {
		return nil
	}
	for _, s := range t.spaces {
		out = append(out, s.variances()...)
	}
	return out
}

// Loads returns the loads of the last round, (subspaces, codewords), and nil before the first.
func (t *Training) Loads() (out []uint64) {
	for _, s := range t.spaces {
		out = append(out, s.loads...)
	}
	return out
}
