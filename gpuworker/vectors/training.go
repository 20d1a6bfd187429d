package vectors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Training is one training. One goroutine uses it: Prologue and Write until the input is complete,
// Train once, Close at any time.
type Training struct {
	m       *Manager
	job     Job
	cost    engine.TrainerCost
	trainer engine.Trainer
	sample  *sampler // nil: every row is kept
	pace    pace

	prologue     []byte
	prologueLeft uint64
	received     uint64 // rows of the data
	written      uint64 // rows of the training
	resumed      int64  // updates before the checkpoint that it resumes from
	begun        time.Time
	closed       bool
	interrupted  atomic.Pointer[error]
	ended        error // why it did not finish; nil if it did
}

// Cost returns the memory that it holds until Close.
func (t *Training) Cost() engine.TrainerCost { return t.cost }

// Received returns how many of the declared rows have come.
func (t *Training) Received() (rows, of uint64) { return t.received, t.job.Rows }

// Complete reports whether all input has come.
func (t *Training) Complete() bool { return t.prologueLeft == 0 && t.received == t.job.Rows }

// Prologue appends a piece of the codewords that it begins with, or of the checkpoint that it
// resumes from.
func (t *Training) Prologue(piece []byte) error {
	switch {
	case t.received > 0:
		return input("prologue", "it comes before any rows, and %d rows have come", t.received)
	case uint64(len(piece)) > t.prologueLeft:
		return input("prologue", "%d bytes came, and only %d of %d are missing", len(piece), t.prologueLeft, t.job.prologue())
	}
	t.prologue = append(t.prologue, piece...)
	t.prologueLeft -= uint64(len(piece))
	if t.prologueLeft > 0 || len(t.prologue) == 0 {
		return nil
	}
	whole := t.prologue
	t.prologue = nil
	if t.job.ResumeBytes == 0 {
		return refused("prologue", t.trainer.Give(whole))
	}
	if len(whole) < stateHeader {
		return fmt.Errorf("%w: no state of it has %d bytes", ErrCheckpoint, len(whole))
	}
	if err := t.trainer.Restore(whole); errors.Is(err, engine.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrCheckpoint, err)
	} else if err != nil {
		return err
	}
	t.resumed = int64(binary.LittleEndian.Uint64(whole[len(stateMark):]))
	return nil
}

// Write appends the next rows, which must be complete.
func (t *Training) Write(rows []byte) error {
	e := t.job.Trainer.Element
	size := t.job.Trainer.Codebook.Dimension * e.Size()
	count := uint64(len(rows) / size)
	switch {
	case len(rows)%size != 0:
		return input("rows", "%d bytes after row %d are not whole rows: want a multiple of %d, %d elements of %d bytes", len(rows),
			t.received, size, t.job.Trainer.Codebook.Dimension, e.Size())
	case t.prologueLeft > 0:
		return input("prologue", "rows came while %d of its %d bytes are missing", t.prologueLeft, t.job.prologue())
	case count > t.job.Rows-t.received:
		return input("rows", "%d come after %d, and %d were declared", count, t.received, t.job.Rows)
	}
	kept := rows
	if t.sample != nil {
		if bad := infinite(e, rows, size); bad >= 0 {
			return input("rows", "row %d has an element that is not finite", t.received+uint64(bad))
		}
		kept = t.sample.keep(rows, size, t.received)
	}
	if len(kept) > 0 {
		if err := t.trainer.Write(t.written, kept); err != nil {
			return refused("rows", err)
		}
	}
	t.written += uint64(len(kept) / size)
	t.received += count
	t.m.counted.rows.Add(count)
	return nil
}

// refused turns an error of the engine into an *InputError if it is about the input.
func refused(field string, err error) error {
	if errors.Is(err, engine.ErrInvalid) {
		return input(field, "%v", err)
	}
	return err
}

// Fail records why the training does not finish, for the counters. Only the first reason counts.
func (t *Training) Fail(err error) {
	if errors.Is(t.ended, errUnfinished) {
		t.ended = err
	}
}

var errUnfinished = errors.New("the training was not finished")

// Interrupt ends a training that sends checkpoints with one more, as soon as possible, with the
// reason given. It has no effect on others. Safe for concurrent use.
func (t *Training) Interrupt(reason error) { t.interrupted.Store(&reason) }

// Close ends the training and frees its memory. It waits for slices on the device, which are short.
// It may be called again.
func (t *Training) Close() {
	if t.closed {
		return
	}
	t.closed = true
	t.m.discard("a training", t.trainer)
	t.trainer, t.prologue = nil, nil
	t.m.leave(t)
}

// Save writes a trained codebook to the directory under the job's name and loads it. The training
// must be closed, because its memory may be needed.
func (t *Training) Save(ctx context.Context, end End) error {
	_, _, err := t.m.put(ctx, t.job.SaveAs, t.job.Trainer.Codebook, end.Codewords, putOptions{origin: origin{
		element: t.job.Trainer.Element, algorithm: t.job.Trainer.Algorithm, seed: t.job.Trainer.Seed, known: true,
	}})
	return err
}
