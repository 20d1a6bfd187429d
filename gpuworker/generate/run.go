package generate

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// NewDecoder makes a text decoder; special says whether control tokens are written out.
type NewDecoder func(special bool) TextDecoder

// Run computes a request on loop and tells sink. decoders may be nil when the request wants no text. It returns how
// many tokens were generated over all continuations, also when it fails; when ctx ends, its cause is the error and no
// continuation is in a step submitted later.
func Run(ctx context.Context, loop Submitter, decoders NewDecoder, r Request, sink Sink) (generated int, err error) {
	run := &run{request: r, sink: sink, scored: make(chan struct{})}
	streams, err := loop.Submit(r.batch())
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, s := range streams {
			s.Cancel()
		}
	}()
	if r.PromptTopN < 0 {
		close(run.scored)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range streams {
		c := &continuation{request: &run.request, index: i, matcher: stopMatcher{stops: r.Stop, include: r.IncludeStop}}
		if !r.NoText {
			c.decoder, c.special = decoders(false), decoders(true)
		}
		follow := func() error { return run.follow(ctx, s, c) }
		if len(streams) == 1 {
			err = follow()
			return int(run.generated.Load()), err
		}
		group.Go(follow)
	}
	err = group.Wait()
	return int(run.generated.Load()), err
}

// batch is the loop's request.
func (r Request) batch() batch.Request {
	b := batch.Request{
		Prompt: r.Prompt, Class: r.Class, Params: r.Params, MaxTokens: r.MaxTokens, StopIDs: r.StopIDs,
		PromptTopN: r.PromptTopN, Progress: r.Progress, Continuations: make([]batch.Continuation, r.Sequences),
	}
	for i := range b.Continuations {
		b.Continuations[i].OutputIndex = int32(i)
	}
	return b
}

// run is the state shared by the continuations of one call.
type run struct {
	request   Request
	generated atomic.Int64
	scored    chan struct{} // closed when every prompt score is delivered: no token goes before them

	mu   sync.Mutex // held over calls of sink, which need not be safe for concurrent use
	sink Sink
}

func (r *run) tell(f func(Sink) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f(r.sink)
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
		var err error
		if events, err = s.Recv(ctx, events[:0]); err != nil {
			return err
		}
		var done *batch.Done
		for _, e := range events {
			switch {
			case e.Prefilled > 0:
				err = r.tell(func(to Sink) error { return to.Prefilled(e.Prefilled) })
			case e.Scored != nil:
				err = r.tell(func(to Sink) error { return to.Scored(score, e.Scored) })
				score += len(e.Scored)
			case e.Token != nil:
				rows = append(rows, *e.Token)
			case e.Done != nil:
				done = e.Done
			}
			if err != nil {
				return err
			}
		}
		if c.index == 0 && r.request.PromptTopN >= 0 && score >= len(r.request.Prompt) {
			r.scoredOnce()
		}
		if done == nil && !r.mayTell() {
			continue // reading on: a stream that is not read pauses its sequence, and the reader counts as slow
		}
		ended, err := r.deliver(ctx, s, c, rows, done)
		if err != nil || ended {
			return err
		}
		rows = rows[:0]
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

// deliver tells the sink about rows and the end that follows them, if any.
func (r *run) deliver(ctx context.Context, s *batch.Stream, c *continuation, rows []engine.RowResult, done *batch.Done) (ended bool, err error) {
	if len(rows) == 0 && done == nil {
		return false, nil
	}
	select {
	case <-r.scored:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	out, matched, err := c.take(rows)
	if err != nil {
		return false, err
	}
	r.generated.Add(int64(len(out.Rows)))
	if len(out.Rows) > 0 {
		if err := r.tell(func(to Sink) error { return to.Tokens(out) }); err != nil {
			return false, err
		}
	}
	switch {
	case matched != "":
		s.Cancel()
		done = &batch.Done{}
	case done == nil:
		return false, nil
	default:
		if rest := c.rest(); rest.Text != "" {
			if err := r.tell(func(to Sink) error { return to.Tokens(rest) }); err != nil {
				return false, err
			}
		}
	}
	end := c.finished(*done, matched, s.Timings())
	return true, r.tell(func(to Sink) error { return to.Finished(end) })
}
