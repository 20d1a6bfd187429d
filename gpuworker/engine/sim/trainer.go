package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// Trainer is a training of the reference. Its unit of work is a round. Submit computes the whole
// slice.
type Trainer struct {
	dev      *Device
	cfg      engine.TrainerConfig
	bytes    uint64
	shut     bool
	rows     []float64
	given    []float64
	state    []byte
	training *vq.Training // nil before the first Submit
	computed uint64
	reported bool              // that the training is done
	ended    []engine.Training // slices in flight
}

func (t *Trainer) written() uint64 { return uint64(len(t.rows) / t.cfg.Codebook.Dimension) }

// ready returns ErrPrecondition if the trainer is closed, or if the call must precede the first
// slice and does not.
func (t *Trainer) ready(before bool) error {
	switch {
	case t.shut:
		return closed("trainer")
	case before && t.training != nil:
		return fmt.Errorf("the training has begun: %w", engine.ErrPrecondition)
	}
	return nil
}

// Write appends whole rows.
func (t *Trainer) Write(first uint64, rows []byte) error {
	if err := t.ready(true); err != nil {
		return err
	}
	size := t.cfg.Codebook.Dimension * t.cfg.Element.Size()
	count := uint64(len(rows) / size)
	switch {
	case len(rows)%size != 0:
		return fmt.Errorf("%d bytes of rows, want a multiple of %d: %w", len(rows), size, engine.ErrInvalid)
	case first != t.written():
		return fmt.Errorf("rows from %d on, %d were written before: %w", first, t.written(), engine.ErrInvalid)
	case count > t.cfg.Rows-first:
		return fmt.Errorf("rows to %d, declared were %d: %w", first+count, t.cfg.Rows, engine.ErrInvalid)
	}
	values := vq.Decode(t.cfg.Element, rows)
	if err := vq.Finite(values, t.cfg.Codebook.Dimension, first); err != nil {
		return err
	}
	t.rows = append(t.rows, values...)
	return nil
}

// Give sets the first codewords of a training with Init Given.
func (t *Trainer) Give(codewords []byte) error {
	if err := t.ready(true); err != nil {
		return err
	}
	if t.cfg.Init != engine.Given {
		return fmt.Errorf("codewords are given and the init is %d: %w", t.cfg.Init, engine.ErrInvalid)
	}
	if _, err := vq.NewCodebook(t.cfg.Codebook, codewords); err != nil {
		return err
	}
	t.given = vq.Decode(t.cfg.Codebook.Type, codewords)
	return nil
}

// Restore stores a state for the first slice, when all rows are known.
func (t *Trainer) Restore(state []byte) error {
	if err := t.ready(true); err != nil {
		return err
	}
	if err := vq.CheckState(t.cfg, state); err != nil {
		return err
	}
	t.state = slices.Clone(state)
	return nil
}

// Submit computes a slice.
func (t *Trainer) Submit(s engine.Slice) error {
	if err := t.ready(false); err != nil {
		return err
	}
	switch {
	case s.Rounds < 1:
		return fmt.Errorf("a slice of %d rounds: %w", s.Rounds, engine.ErrInvalid)
	case len(t.ended) == 2:
		return fmt.Errorf("two slices are in flight: %w", engine.ErrPrecondition)
	case t.reported:
		return fmt.Errorf("the training is done: %w", engine.ErrPrecondition)
	}
	if t.training == nil {
		if err := t.begin(); err != nil {
			return err
		}
	}
	out := engine.Training{Phase: engine.Assigning, RowsTotal: t.cfg.Rows}
	for range s.Rounds {
		if t.training.Reason() != engine.Unfinished {
			break
		}
		r, err := t.training.Round()
		if err != nil {
			return err
		}
		out.Rounds = append(out.Rounds, r)
		t.computed += t.cfg.Rows * uint64(t.cfg.Codebook.Subspaces)
	}
	if out.Reason = t.training.Reason(); out.Reason != engine.Unfinished {
		out.Phase, out.RowsDone = engine.Done, t.cfg.Rows
	}
	out.Computed, out.Recomputed = t.computed, t.computed // all of them use float64
	t.ended = append(t.ended, out)
	return nil
}

func (t *Trainer) begin() (err error) {
	switch {
	case t.written() != t.cfg.Rows:
		return fmt.Errorf("%d of %d rows are written: %w", t.written(), t.cfg.Rows, engine.ErrPrecondition)
	case t.state != nil:
		t.training, err = vq.Resume(t.cfg, t.rows, t.state)
	case t.cfg.Init == engine.Given && t.given == nil:
		return fmt.Errorf("the init is given and no codewords are: %w", engine.ErrPrecondition)
	default:
		t.training, err = vq.New(t.cfg, t.rows, t.given)
	}
	return err
}

// Wait returns the progress of the oldest slice.
func (t *Trainer) Wait(time.Duration) (engine.Training, error) {
	if err := t.ready(false); err != nil {
		return engine.Training{}, err
	}
	if len(t.ended) == 0 {
		return engine.Training{}, fmt.Errorf("no slice is in flight: %w", engine.ErrPrecondition)
	}
	out := t.ended[0]
	t.ended = t.ended[1:]
	t.reported = t.reported || out.Phase == engine.Done
	return out, nil
}

// seen returns the training between slices.
func (t *Trainer) seen() (*vq.Training, error) {
	if err := t.ready(false); err != nil {
		return nil, err
	}
	switch {
	case t.training == nil:
		return nil, fmt.Errorf("no codeword is seeded: %w", engine.ErrPrecondition)
	case len(t.ended) > 0:
		return nil, fmt.Errorf("%d slices are in flight: %w", len(t.ended), engine.ErrPrecondition)
	}
	return t.training, nil
}

// Codewords returns the codebook.
func (t *Trainer) Codewords() ([]byte, error) {
	tr, err := t.seen()
	if err != nil {
		return nil, err
	}
	return tr.Codewords(), nil
}

// State returns the state for Restore.
func (t *Trainer) State() ([]byte, error) {
	tr, err := t.seen()
	if err != nil {
		return nil, err
	}
	return tr.State(), nil
}

// IDs returns the ids of the last round.
func (t *Trainer) IDs() ([]uint32, error) {
	tr, err := t.seen()
	if err != nil {
		return nil, err
	}
	ids := tr.IDs()
	return ids, measured(ids == nil)
}

// Loads returns the loads of the last round.
func (t *Trainer) Loads() ([]uint64, error) {
	tr, err := t.seen()
	if err != nil {
		return nil, err
	}
	loads := tr.Loads()
	return loads, measured(loads == nil)
}

// Variances returns the codewords' mean distances in the last round.
func (t *Trainer) Variances() ([]float64, error) {
	tr, err := t.seen()
	if err != nil {
		return nil, err
	}
	variances := tr.Variances()
	if variances == nil {
		return nil, fmt.Errorf("the training is not done: %w", engine.ErrPrecondition)
	}
	return variances, nil
}

func measured(missing bool) error {
	if missing {
		return fmt.Errorf("no round has ended: %w", engine.ErrPrecondition)
	}
	return nil
}

// Close frees all memory.
func (t *Trainer) Close() error {
	if err := t.ready(false); err != nil {
		return err
	}
	t.shut = true
	t.rows, t.training = nil, nil
	t.dev.give(t.bytes, engine.Workspace)
	t.dev.count(-1)
	return nil
}

var _ engine.Trainer = (*Trainer)(nil)
