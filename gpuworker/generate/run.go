package generate

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Totals are the tokens of a run, over all continuations.
type Totals struct {
	Resumed   int // taken from Request.Resume
	Generated int // told to the sink by this run
	Cached    int // of the prompt, from the prefix cache
	// Timings are those of the first continuation that was computed, up to its last event.
	Timings batch.Timings
}

// Run computes a request on loop and tells sink. decoders may be nil when the request wants no text. The totals are those so
// far, also when it fails; when ctx ends, its cause is the error and no continuation is in a step submitted later. Of a resumed
// request, what cannot be resumed is refused with ErrResume or ErrResumeText before anything is computed, continuations that
// end with their last token are only told, and those told before are passed over.
func Run(ctx context.Context, loop Submitter, decoders NewDecoder, r Request, sink Sink) (totals Totals, err error) {
	if r.Resumed() {
		r.PromptTopN = -1
	}
	limit, err := loop.Fit(len(r.Prompt), r.MaxTokens)
	if err != nil {
		return Totals{}, err
	}
	all, err := r.continuations(limit, decoders)
	if err != nil {
		return Totals{}, err
	}
	var live []*continuation
	run := &run{request: r, scored: make(chan struct{}), told: teller{sink: sink}}
	run.told.start = func() Started { return run.started(all) }
	for _, c := range all {
		totals.Resumed += len(c.resumed)
		switch {
		case c.silent:
		case c.end != nil:
			run.told.atOnce = append(run.told.atOnce, c.finished(0, batch.Timings{}))
		default:
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return totals, run.told.started()
	}
	if run.streams, err = loop.Submit(r.batch(live)); err != nil {
		return totals, err
	}
	defer func() {
		for _, s := range run.streams {
			s.Cancel()
		}
		for _, c := range live {
			totals.Generated += c.count - len(c.resumed)
		}
		totals.Cached, totals.Timings = run.cached(), run.streams[0].Timings()
	}()
	if r.PromptTopN < 0 {
		close(run.scored)
	}
	if len(live) == 1 {
		return totals, run.follow(ctx, run.streams[0], live[0])
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range run.streams {
		group.Go(func() error { return run.follow(ctx, s, live[i]) })
	}
	return totals, group.Wait()
}

// continuations are all of a request, each behind what was delivered of it.
func (r *Request) continuations(limit int, decoders NewDecoder) ([]*continuation, error) {
	all := make([]*continuation, r.Sequences)
	for i := range all {
		all[i] = newContinuation(r, i, limit, decoders)
	}
	for entry, resume := range r.Resume {
		if err := all[resume.OutputIndex].resume(resume, entry); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// run is the state shared by the continuations of one call.
type run struct {
	request Request
	streams []*batch.Stream // of the continuations that are computed
	scored  chan struct{}   // closed when every prompt score is delivered: no token goes before them
	told    teller
}

// started is what Started says: told is about to tell the first event.
func (r *run) started(all []*continuation) Started {
	s := Started{Cached: r.cached()}
	if r.request.Resumed() {
		s.Resumed = make([]int, len(all))
		for i, c := range all {
			s.Resumed[i] = len(c.resumed)
		}
	}
	return s
}

// cached is how much of the prompt came from the prefix cache, as the first continuation found it: 0 until it is admitted.
func (r *run) cached() int {
	if len(r.streams) == 0 {
		return 0
	}
	return r.streams[0].Cached()
}

// follow carries one stream to the sink until its end.
func (r *run) follow(ctx context.Context, s *batch.Stream, c *continuation) error {
	var events []batch.Event
	var rows []engine.RowResult // not delivered yet
	score := 1                  // index of the next prompt token to be scored
	for {
		if ctx.Err() != nil { // a loop that is faster than the sink always has events, and Recv gives those first
			return context.Cause(ctx)
		}
		withheld := len(rows) >= heldRows
		if withheld { // they wait for the prompt's scores: the sequence pauses
			s.Withhold(true)
			if err := r.awaitScores(ctx); err != nil {
				return err
			}
		}
		var err error
		if events, err = s.Recv(ctx, events[:0]); err != nil {
			return err
		}
		if withheld {
			s.Withhold(false)
		}
		done := false
		for _, e := range events {
			switch {
			case e.Prefilled > 0:
				err = r.told.prefilled(e.Prefilled)
			case e.Scored != nil:
				err = r.told.scored(score, e.Scored)
				score += len(e.Scored)
			case e.Token != nil:
				rows = append(rows, *e.Token)
			case e.Done != nil:
				done = true
			}
			if err != nil {
				return err
			}
		}
		if c.index == 0 && r.request.PromptTopN >= 0 && score >= len(r.request.Prompt) {
			r.scoredOnce()
		}
		if !done && !r.mayTell() {
			continue // the others generate meanwhile, up to heldRows
		}
		ended, err := r.deliver(ctx, s, c, rows, done)
		if err != nil || ended {
			return err
		}
		rows = rows[:0]
	}
}

// heldRows is how many tokens of a continuation wait for the prompt's scores before its sequence pauses: as many as a stream
// holds. Without a bound a caller that reads no scores had a worker keep every token of its other continuations, about 1 KiB each
// with 64 candidates.
const heldRows = 64

// awaitScores waits until every prompt score is delivered. It fails with the cause of ctx.
func (r *run) awaitScores(ctx context.Context) error {
	select {
	case <-r.scored:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// mayTell says whether every prompt score is delivered.
func (r *run) mayTell() bool {
	select {
	case <-r.scored:
		return true
	default:
		return false
	}
}

// scoredOnce is called by the first continuation only.
func (r *run) scoredOnce() {
	if !r.mayTell() {
		close(r.scored)
	}
}

// deliver tells the sink about rows and the end that follows them, if any. The loop ends a sequence by itself at a stop token
// and at its length; a stop string is seen here, and what the loop computes behind it is dropped.
func (r *run) deliver(ctx context.Context, s *batch.Stream, c *continuation, rows []engine.RowResult, done bool) (ended bool, err error) {
	if len(rows) == 0 && !done {
		return false, nil
	}
	if err := r.awaitScores(ctx); err != nil {
		return false, err
	}
	out, err := c.take(rows)
	if err != nil {
		return false, err
	}
	if len(out.Rows) > 0 {
		if err := r.told.tokens(out); err != nil {
			return false, err
		}
	}
	stopped := c.end != nil && c.end.stop != ""
	if stopped {
		s.Cancel()
	}
	if !stopped && !done {
		return false, nil
	}
	return true, r.told.finished(c.finished(r.cached(), s.Timings()))
}
