package generate

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Totals are the tokens of a run over all continuations.
type Totals struct {
	Resumed   int // from Request.Resume
	Generated int // delivered to the sink by this run
	Cached    int // prompt tokens from the prefix cache
	// Timings are those of the first computed continuation, up to its last event.
	Timings batch.Timings
}

// Run computes a request on loop and reports to sink. decoders may be nil if the request wants no
// text. The totals are valid even if it fails. If ctx ends, its cause is the error, and no
// continuation is in a step that is submitted later.
//
// If the request is resumed, Run returns ErrResume or ErrResumeText before it computes anything if
// the tokens are not possible. Continuations that end with their last resumed token are only
// reported, and those whose end was delivered before are skipped.
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
	run := &run{request: r, scored: make(chan struct{}), sink: serialSink{next: sink}}
	run.sink.start = func() Started { return run.started(all) }
	for _, c := range all {
		totals.Resumed += len(c.resumed)
		switch {
		case c.delivered:
		case c.end != nil:
			run.sink.immediate = append(run.sink.immediate, c.finish(0, batch.Timings{}))
		default:
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return totals, run.sink.started()
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

// continuations returns all continuations of a request, advanced past the part delivered before.
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
	scored  chan struct{}   // closed when all prompt scores are delivered; no token precedes them
	sink    serialSink
}

// started returns the Started event.
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

// cached is the prefix hit of the first continuation; 0 until it is admitted.
func (r *run) cached() int {
	if len(r.streams) == 0 {
		return 0
	}
	return r.streams[0].Cached()
}

// follow passes one stream on to the sink until its end.
func (r *run) follow(ctx context.Context, s *batch.Stream, c *continuation) error {
	var events []batch.Event
	var rows []engine.RowResult // not delivered yet
	score := 1                  // index of the next prompt token to be scored
	for {
		// A loop that is faster than the sink always has events, which Recv returns before it
		// checks ctx.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		withheld := len(rows) >= heldRows
		if withheld { // until the prompt's scores are delivered the sequence pauses
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
				err = r.sink.prefilled(e.Prefilled)
			case e.Scored != nil:
				err = r.sink.scored(score, e.Scored)
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
			r.markScored()
		}
		if !done && !r.scoresDelivered() {
			continue // other continuations generate up to heldRows
		}
		ended, err := r.deliver(ctx, s, c, rows, done)
		if err != nil || ended {
			return err
		}
		rows = rows[:0]
	}
}

// heldRows is how many tokens of a continuation wait for the prompt's scores before its sequence
// pauses, as many as a stream buffers. It is the backpressure for a caller that reads no scores:
// without it a worker would buffer every token of the other continuations, about 1 KiB each with 64
// candidates.
const heldRows = 64

// awaitScores waits until all prompt scores are delivered. It returns the cause of ctx if that
// ends.
func (r *run) awaitScores(ctx context.Context) error {
	select {
	case <-r.scored:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// scoresDelivered reports whether all prompt scores are delivered.
func (r *run) scoresDelivered() bool {
	select {
	case <-r.scored:
		return true
	default:
		return false
	}
}

// markScored is called by the first continuation only.
func (r *run) markScored() {
	if !r.scoresDelivered() {
		close(r.scored)
	}
}

// deliver reports rows, and the end if one follows, to the sink. The loop ends a sequence at a stop
// token and at its length. A stop string is found here, and what the loop computes after it is
// dropped.
func (r *run) deliver(ctx context.Context, s *batch.Stream, c *continuation, rows []engine.RowResult, done bool) (ended bool, err error) {
	if len(rows) == 0 && !done {
		return false, nil
	}
	if err := r.awaitScores(ctx); err != nil {
		return false, err
	}
	out, err := c.consume(rows)
	if err != nil {
		return false, err
	}
	if len(out.Rows) > 0 {
		if err := r.sink.tokens(out); err != nil {
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
	return true, r.sink.finished(c.finish(r.cached(), s.Timings()))
}
