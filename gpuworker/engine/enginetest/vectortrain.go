package enginetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// sliceTimeout is far above the time of a slice of any job.
const sliceTimeout = 2 * time.Minute

// Train runs the job on a device, from a state or from its start, and closes the trainer. Two
// slices are in flight at once.
func (j *Job) Train(dev engine.Vectors, from []byte) (out Outcome, err error) {
	tr, err := dev.NewTrainer(j.Config)
	if err != nil {
		return out, fmt.Errorf("new trainer: %w", err)
	}
	defer func() { err = errors.Join(err, tr.Close()) }()
	if err := j.prepare(tr, from); err != nil {
		return out, err
	}
	for pair := 0; out.Reason == engine.Unfinished; pair++ {
		inFlight := 1 + pair%2
		for range inFlight {
			if err := tr.Submit(j.Slice); err != nil {
				return out, fmt.Errorf("submit: %w", err)
			}
		}
		for range inFlight {
			if err := j.wait(tr, &out); err != nil {
				return out, err
			}
		}
	}
	err = read(tr, &out)
	return out, err
}

// prepare makes all calls of a trainer that must precede its first slice.
func (j *Job) prepare(tr engine.Trainer, from []byte) error {
	if from != nil {
		if err := tr.Restore(from); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	} else if j.Config.Init == engine.Given {
		if err := tr.Give(j.Given); err != nil {
			return fmt.Errorf("give: %w", err)
		}
	}
	row := uint64(len(j.Rows)) / j.Config.Rows
	for first := uint64(0); first < j.Config.Rows; first += uint64(j.Chunk) {
		last := min(first+uint64(j.Chunk), j.Config.Rows)
		if err := tr.Write(first, j.Rows[first*row:last*row]); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// wait waits for one slice and checks the invariants of its result.
func (j *Job) wait(tr engine.Trainer, out *Outcome) error {
	told, err := tr.Wait(sliceTimeout)
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	over := out.Reason != engine.Unfinished
	out.Rounds = append(out.Rounds, told.Rounds...)
	out.Reason = told.Reason
	switch {
	case len(told.Rounds) > j.Slice.Rounds:
		return fmt.Errorf("%d rounds in a slice of %d", len(told.Rounds), j.Slice.Rounds)
	case over && len(told.Rounds) > 0:
		return fmt.Errorf("%d rounds behind the end", len(told.Rounds))
	case (told.Reason != engine.Unfinished) != (told.Phase == engine.Done):
		return fmt.Errorf("reason %d in phase %d", told.Reason, told.Phase)
	case told.RowsDone > told.RowsTotal:
		return fmt.Errorf("%d of %d rows", told.RowsDone, told.RowsTotal)
	case told.Recomputed > told.Computed:
		return fmt.Errorf("%d ids recomputed of %d", told.Recomputed, told.Computed)
	case told.Computed < uint64(len(out.Rounds))*j.Config.Rows*uint64(j.Config.Codebook.Subspaces):
		return fmt.Errorf("%d ids in %d rounds of %d rows", told.Computed, len(out.Rounds), j.Config.Rows)
	}
	return nil
}

// read reads the results of a trainer between slices.
func read(tr engine.Trainer, out *Outcome) (err error) {
	if out.IDs, err = tr.IDs(); err != nil {
		return err
	}
	if out.Loads, err = tr.Loads(); err != nil {
		return err
	}
	if out.Variances, err = tr.Variances(); err != nil {
		return err
	}
	if out.Codewords, err = tr.Codewords(); err != nil {
		return err
	}
	out.State, err = tr.State()
	return err
}
