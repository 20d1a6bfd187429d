package sametest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

var errPlayed = errors.New("the scenario is over")

// play runs a scenario on a runner and gives what every continuation of every actor got. The loop must be idle afterwards, with
// every block back and no cancelled sequence in a step planned later.
func play(s *scenario, runner engine.Runner, counts *Counts) ([][]answer, error) {
	cfg := s.cfg
	cfg.Observer = watch{counts}
	loop := batch.New(cfg, &spy{Runner: runner, counts: counts}, hclog.NewNullLogger())
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	run := func() { go func() { ended <- loop.Run(ctx) }() }
	if !s.together {
		run()
	}
	late, release := guard(ctx, loop)
	defer release()
	got, err := perform(late, s, loop, run)
	if err == nil {
		err = settled(loop)
	}
	stats := loop.Stats()
	stop(errPlayed)
	if end := <-ended; !errors.Is(end, errPlayed) {
		err = errors.Join(err, fmt.Errorf("the loop ended: %w", end))
	}
	if err != nil {
		return nil, fmt.Errorf("%w; the loop's figures: %+v", err, stats)
	}
	counts.Add(SawPreempted, stats.Preempted)
	counts.Add(SawRecalled, stats.TierRecalls)
	counts.Add(SawForced, stats.ForcedTokens)
	counts.Add(SawCancelled, stats.Cancelled)
	return got, nil
}

// guard ends its context with "it hangs" if the loop carries out no step for patience; the caller
// must call release. A whole scenario has no limit, because its time depends on the machine: one
// with a prompt of 65536 tokens takes minutes on a busy one.
func guard(ctx context.Context, loop *batch.Loop) (guarded context.Context, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	released := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		look := time.NewTicker(patience / 100)
		defer look.Stop()
		for steps, since := loop.Stats().Steps, time.Now(); ; {
			select {
			case <-released:
				return
			case <-look.C:
			}
			if now := loop.Stats().Steps; now != steps {
				steps, since = now, time.Now()
			}
			if time.Since(since) > patience {
				cancel(errors.New("it hangs"))
				return
			}
		}
	})
	return guarded, func() {
		close(released)
		watching.Wait()
		cancel(nil)
	}
}

// settled returns an error if a loop without open requests still holds a resource.
func settled(loop *batch.Loop) error {
	for began := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		stats := loop.Stats()
		if loop.Idle() && stats.FreeBlocks == stats.TotalBlocks && stats.FreeStates == stats.TotalStates &&
			stats.FreeWindowBlocks == stats.TotalWindowBlocks {
			if stats.StepsAfterCancel > 0 {
				return fmt.Errorf("cancelled sequences were in %d steps planned later", stats.StepsAfterCancel)
			}
			return nil
		}
		if time.Since(began) > patience {
			return errors.New("everybody has got an end, and the loop is not idle with every block and state free")
		}
	}
}

// perform lets the actors come, and run begin where all of them wait for that.
func perform(ctx context.Context, s *scenario, loop *batch.Loop, run func()) ([][]answer, error) {
	first := 0
	for i := range s.actors {
		if s.actors[i].after == 0 && s.actors[i].follows == none {
			first++
		}
	}
	e := &stage{
		loop: loop, pulse: newPulse(first), got: make([][]answer, len(s.actors)), ended: make([]chan struct{}, len(s.actors)),
	}
	for i := range e.ended {
		e.ended[i] = make(chan struct{})
	}
	errs := make([]error, len(s.actors))
	var all, come sync.WaitGroup
	come.Add(len(s.actors))
	for i := range s.actors {
		all.Go(func() { errs[i] = e.act(ctx, i, &s.actors[i], come.Done) })
	}
	if s.together {
		come.Wait()
		run()
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("actor %d, %s: %w", i, &s.actors[i], err)
		}
	}
	return e.got, errors.Join(errs...)
}

// stage is where actors act.
type stage struct {
	loop  *batch.Loop
	pulse *pulse
	got   [][]answer
	ended []chan struct{} // by actor
}

// act carries one actor from its coming to its end; come is called once when it has submitted its request or failed to.
func (e *stage) act(ctx context.Context, i int, a *actor, come func()) (err error) {
	come = sync.OnceFunc(come)
	defer close(e.ended[i])
	defer come()
	if a.follows != none {
		select {
		case <-e.ended[a.follows]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		e.pulse.tick(0, 1)
	} else if a.after > 0 {
		if err := e.pulse.wait(ctx, a.after); err != nil {
			return err
		}
	}
	defer e.pulse.tick(0, -1)
	for j := range a.asks {
		c := &a.request.Continuations[j]
		if c.Guide, err = behind(a.asks[j].begin(), c.Resumed); err != nil {
			return err
		}
	}
	streams, err := e.loop.Submit(a.request)
	if err != nil {
		return err
	}
	come()
	e.got[i] = make([]answer, len(streams))
	errs := make([]error, len(streams))
	var readers sync.WaitGroup
	for j, stream := range streams {
		readers.Go(func() {
			r := reader{pulse: e.pulse, actor: a, ask: &a.asks[j], stream: stream, all: streams}
			errs[j] = r.read(ctx)
			e.got[i][j] = r.got
		})
	}
	readers.Wait()
	return errors.Join(errs...)
}

// reader reads one stream of an actor.
type reader struct {
	pulse  *pulse
	actor  *actor
	ask    *ask
	stream *batch.Stream
	all    []*batch.Stream // of the actor, which cancels them together
	events int
	rested bool
	got    answer
}

func (r *reader) read(ctx context.Context) error {
	var events []batch.Event
	for {
		if r.actor.cancel != none && r.events >= r.actor.cancel {
			for _, s := range r.all {
				s.Cancel()
			}
		}
		if r.actor.rest != none && r.events >= r.actor.rest && !r.rested && r.got.end == "" {
			if err := r.rest(ctx); err != nil {
				return err
			}
		}
		var err error
		if events, err = r.stream.Recv(ctx, events[:0]); err != nil {
			return r.failed(err)
		}
		if len(events) == 0 {
			return nil
		}
		r.events += len(events)
		r.pulse.tick(len(events), 0)
		for _, e := range events {
			r.take(e)
		}
	}
}

// rest stops reading once, until no other reader has anything to read.
func (r *reader) rest(ctx context.Context) error {
	r.rested = true
	r.pulse.tick(0, -1)
	return r.pulse.wait(ctx, 1<<62)
}

func (r *reader) take(e batch.Event) {
	switch {
	case e.Scored != nil:
		r.got.scores = append(r.got.scores, cloned(e.Scored)...)
	case e.Token != nil:
		row := *e.Token
		row.Candidates = slices.Clone(row.Candidates)
		r.got.rows = append(r.got.rows, r.ask.read(row))
	case e.Done != nil && e.Done.Reason == batch.Stop:
		r.got.end = stopEnd(e.Done.StopID)
	case e.Done != nil:
		r.got.end = endLength
	}
}

// failed makes an end of the errors that may be one.
func (r *reader) failed(err error) error {
	switch {
	case errors.Is(err, batch.ErrCancelled):
		r.got.end = endCancelled
	case errors.Is(err, batch.ErrNoToken):
		r.got.end = endEmpty
	case errors.Is(err, batch.ErrBadLogits):
		r.got.end = endNaN
	default:
		return err
	}
	return nil
}
