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

// Training is one training. One goroutine uses it: Prologue and Write until all is there, Train once, Close at any time.
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
	resumed      int64  // updates behind the checkpoint that it goes on from
	begun        time.Time
	closed       bool
	interrupted  atomic.Pointer[error]
	ended        error // why it did not finish; nil once it has
}

// Cost is what it holds until it is closed.
func (t *Training) Cost() engine.TrainerCost { return t.cost }

// Received is how many rows have come of those declared.
func (t *Training) Received() (rows, of uint64) { return t.received, t.job.Rows }

// Complete says whether everything that it waits for has come.
func (t *Training) Complete() bool { return t.prologueLeft == 0 && t.received == t.job.Rows }

// Prologue takes a piece of the codewords that it begins with, or of the checkpoint that it goes on from.
func (t *Training) Prologue(piece []byte) error {
	switch {
	case t.received > 0:
		return input("prologue", "it comes before any rows, and %d rows have come", t.received)
	case uint64(len(piece)) > t.prologueLeft:
		return input("prologue", "%d bytes come where %d are left of %d", len(piece), t.prologueLeft, t.job.prologue())
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
		return fmt.Errorf("%w: %d bytes are no size of its", ErrCheckpoint, len(whole))
	}
	if err := t.trainer.Restore(whole); errors.Is(err, engine.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrCheckpoint, err)
	} else if err != nil {
		return err
	}
	t.resumed = int64(binary.LittleEndian.Uint64(whole[len(stateMark):]))
	return nil
}

// Write takes the next rows, whole ones.
func (t *Training) Write(rows []byte) error {
	e := t.job.Trainer.Element
	size := t.job.Trainer.Codebook.Dimension * e.Size()
	count := uint64(len(rows) / size)
	switch {
	case len(rows)%size != 0:
		return input("rows", "%d bytes behind row %d are no whole rows: want a multiple of %d, %d elements of %d bytes", len(rows),
			t.received, size, t.job.Trainer.Codebook.Dimension, e.Size())
	case t.prologueLeft > 0:
		return input("prologue", "rows come where %d of its %d bytes are left", t.prologueLeft, t.job.prologue())
	case count > t.job.Rows-t.received:
		return input("rows", "%d come behind %d, and %d were declared", count, t.received, t.job.Rows)
	}
	kept := rows
	if t.sample != nil {
		if at := infinite(e, rows, size); at >= 0 {
			return input("rows", "row %d has an element that is not finite", t.received+uint64(at))
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

// refused is an error of the engine as one of the input, where it is about that.
func refused(field string, err error) error {
	if errors.Is(err, engine.ErrInvalid) {
		return input(field, "%v", err)
	}
	return err
}

// Fail says why the training will not finish, for the counts; only the first reason counts.
func (t *Training) Fail(err error) {
	if errors.Is(t.ended, errUnfinished) {
		t.ended = err
	}
}

var errUnfinished = errors.New("the training was not finished")

// Interrupt ends a training that gives checkpoints with one more, as soon as it can, for the reason given; others go on. It may be
// called from any goroutine.
func (t *Training) Interrupt(reason error) { t.interrupted.Store(&reason) }

// Close ends the training and gives back all that it holds. It waits for slices on the device, which are short. Closing again does
// nothing.
func (t *Training) Close() {
	if t.closed {
		return
	}
	t.closed = true
	t.m.discard("a training", t.trainer)
	t.trainer, t.prologue = nil, nil
	t.m.leave(t)
}

// Save writes a trained codebook to the directory under the job's name and loads it. The training must be closed: its memory may be
// needed.
func (t *Training) Save(ctx context.Context, end End) error {
	_, _, err := t.m.put(ctx, t.job.SaveAs, t.job.Trainer.Codebook, end.Codewords, putOptions{origin: origin{
		element: t.job.Trainer.Element, algorithm: t.job.Trainer.Algorithm, seed: t.job.Trainer.Seed, known: true,
	}})
	return err
}
