package vectors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Events receives the events of a training. A method that blocks delays the training; an error ends
// it.
type Events interface {
	// Progress is called for every round, and at least once a second between rounds.
	Progress(Progress) error
	// Checkpoint receives the state of the training before the round that follows the given number
	// of updates.
	Checkpoint(updates int64, state []byte) error
}

// Progress is how far a training is.
type Progress struct {
	Phase               engine.Phase
	RowsDone, RowsTotal uint64        // of the phase
	Round               *engine.Round // the last completed one; nil before the first
	Delta               *float64      // its energy less that of the round before; nil for the first
	Codewords           int64         // of all subspaces
	ETA                 time.Duration // until the last possible iteration; 0: unknown
}

// End is a finished training.
type End struct {
	Codewords                []byte
	Digest                   engine.Digest // the public one
	Reason                   engine.Reason
	Last                     engine.Round
	Ratio                    float64       // Job.Ratio
	Recomputed               float64       // share of the ids
	Writing, Seeding, Rounds time.Duration // from Begin to Train, to the first round, to the end
	Device                   time.Duration // of the last two, the time that the device worked
	Variances                *Spread       // of the codewords that have rows; nil above MaxStatistics codewords
	Statistics               *Statistics   // nil unless the job asks for them
}

const (
	// maxRounds bounds the rounds of one slice: small jobs complete many in a few milliseconds.
	maxRounds = 64
	// silence bounds the time between two calls of Progress.
	silence = time.Second
	// glance is how long a wait for the device lasts before the caller is checked, and nap how long
	// a wait for tokens does.
	glance, nap = 50 * time.Millisecond, 5 * time.Millisecond
)

// run is a training that computes.
type run struct {
	*Training
	events        Events
	begun, seeded time.Time
	told          time.Time
	updates       int64 // before the next round
	rounds        int   // completed ones
	last          *engine.Round
	delta         *float64
	seen          engine.Training // after the last slice
	device        time.Duration
	flying        []int // the rounds that slices in flight may compute, the oldest first
}

// Train computes until the training ends or ctx does. All input must be complete. Call it once.
func (t *Training) Train(ctx context.Context, events Events) (End, error) {
	now := time.Now()
	r := &run{Training: t, events: events, begun: now, told: now, updates: t.resumed, seen: engine.Training{Phase: engine.Seeding}}
	for r.seen.Phase != engine.Done || len(r.flying) > 0 {
		if err := r.step(ctx); err != nil {
			return End{}, err
		}
	}
	return r.end()
}

// step computes for a while: without limit while models are idle, else a slice and a rest.
func (r *run) step(ctx context.Context) error {
	if err := r.sign(ctx); err != nil {
		return err
	}
	if reason := r.interrupted.Load(); reason != nil && r.job.Checkpoint > 0 {
		return r.leave(ctx, *reason)
	}
	tokens := r.m.cfg.Tokens()
	r.pace.observe(tokens, time.Now())
	if !tokens.Busy || len(r.flying) > 0 {
		return r.slice(ctx, !tokens.Busy)
	}
	if !r.m.computing.TryAcquire(1) { // another training computes, or rests on behalf of all
		pause(ctx, nap)
		return nil
	}
	defer r.m.computing.Release(1)
	begun := time.Now()
	if err := r.slice(ctx, false); err != nil {
		return err
	}
	end := time.Now().Add(r.pace.rest(time.Since(begun)))
	for r.m.cfg.Tokens().Busy && time.Now().Before(end) && r.seen.Phase != engine.Done {
		if err := r.sign(ctx); err != nil {
			return err
		}
		pause(ctx, min(nap, time.Until(end)))
	}
	return nil
}

// leave sends a last checkpoint when no slice is in flight.
func (r *run) leave(ctx context.Context, reason error) error {
	for len(r.flying) > 0 {
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	if r.seen.Phase == engine.Done {
		return nil
	}
	if r.rounds > 0 {
		if err := r.checkpoint(); err != nil {
			return err
		}
	}
	return reason
}

// slice waits for the oldest slice in flight. If free, it submits another one first, so that the
// device has no pause; else it submits one only if none is in flight.
func (r *run) slice(ctx context.Context, free bool) error {
	for len(r.flying) == 0 || free && len(r.flying) < 2 && r.seen.Phase != engine.Done {
		rounds := r.room()
		if rounds == 0 {
			break
		}
		if err := r.trainer.Submit(engine.Slice{Budget: r.pace.budget(!free), Rounds: rounds}); err != nil {
			return refused("config.codeword_type", err)
		}
		r.flying = append(r.flying, rounds)
	}
	return r.wait(ctx)
}

// wait waits for the oldest slice in flight.
func (r *run) wait(ctx context.Context) error {
	for {
		seen, err := r.trainer.Wait(glance)
		if err == nil {
			r.flying = r.flying[1:]
			return r.apply(seen)
		}
		if !errors.Is(err, engine.ErrTimeout) {
			return err
		}
		if err := r.sign(ctx); err != nil {
			return err
		}
	}
}

// room returns how many rounds another slice may compute: no slice passes the next checkpoint.
func (r *run) room() int {
	c := int64(r.job.Checkpoint)
	if c == 0 {
		return maxRounds
	}
	left := c - r.updates%c
	for _, rounds := range r.flying {
		left -= int64(rounds)
	}
	return int(min(max(left, 0), maxRounds))
}

// apply handles the results of a slice.
func (r *run) apply(seen engine.Training) error {
	c := &r.m.counted
	c.computed.Add(seen.Computed - r.seen.Computed)
	c.recomputed.Add(seen.Recomputed - r.seen.Recomputed)
	c.device.Add(int64(seen.DeviceTime))
	c.rounds.Add(uint64(len(seen.Rounds)))
	r.seen = seen
	r.device += seen.DeviceTime
	if r.seeded.IsZero() && (seen.Phase != engine.Seeding || len(seen.Rounds) > 0) {
		r.seeded = time.Now()
	}
	for i := range seen.Rounds {
		round := &seen.Rounds[i]
		r.delta = nil
		if r.last != nil {
			d := round.Energy - r.last.Energy
			r.delta = &d
		}
		r.last, r.updates = round, round.Iteration+1
		r.rounds++
		if err := r.tell(); err != nil {
			return err
		}
	}
	due := r.job.Checkpoint > 0 && len(seen.Rounds) > 0 && r.updates%int64(r.job.Checkpoint) == 0
	if !due || seen.Phase == engine.Done || len(r.flying) > 0 {
		return nil
	}
	return r.checkpoint()
}

func (r *run) checkpoint() error {
	state, err := r.trainer.State()
	if err != nil {
		return err
	}
	return r.events.Checkpoint(r.updates, state)
}

// sign sends progress if none was sent for silence. It returns the error of ctx.
func (r *run) sign(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if time.Since(r.told) < silence {
		return nil
	}
	return r.tell()
}

func (r *run) tell() error {
	r.told = time.Now()
	return r.events.Progress(Progress{
		Phase: r.seen.Phase, RowsDone: r.seen.RowsDone, RowsTotal: r.seen.RowsTotal, Round: r.last, Delta: r.delta, ETA: r.eta(),
		Codewords: int64(r.job.Trainer.Codebook.Codewords) * int64(r.job.Trainer.Codebook.Subspaces),
	})
}

// eta assumes that the remaining rounds take as long as the past ones.
func (r *run) eta() time.Duration {
	left := int64(r.job.Trainer.MaxIterations) + 1 - r.updates
	if r.rounds == 0 || left <= 0 || r.seen.Phase == engine.Done {
		return 0
	}
	return time.Duration(float64(time.Since(r.seeded)) / float64(r.rounds) * float64(left))
}

func (r *run) end() (End, error) {
	codewords, err := r.trainer.Codewords()
	if err != nil {
		return End{}, err
	}
	if r.last == nil {
		return End{}, fmt.Errorf("the training ended without a round: %w", engine.ErrDevice)
	}
	r.ended = nil
	e := End{
		Codewords: codewords, Digest: Digest(r.job.Trainer.Codebook, blake3.Sum256(codewords)), Reason: r.seen.Reason, Last: *r.last,
		Ratio: r.job.Ratio(), Writing: r.begun.Sub(r.Training.begun), Seeding: r.seeded.Sub(r.begun), Rounds: time.Since(r.seeded),
		Device: r.device,
	}
	if err := r.measure(&e); err != nil {
		return End{}, err
	}
	if r.seen.Computed > 0 {
		e.Recomputed = float64(r.seen.Recomputed) / float64(r.seen.Computed)
	}
	return e, nil
}
