package embed

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
)

// Window is how many texts of one call are in the loop at once: enough to fill two steps in flight,
// and few enough that a call with thousands of texts neither fills the queue nor holds every slot.
const Window = 32

// Loop is the part of a step loop that computes texts; batch.Loop is one.
type Loop interface {
	Submit(batch.Request) ([]*batch.Stream, error)
}

// Job holds the options that all texts of one call share.
type Job struct {
	ID       string // for logs; may be empty
	Schedule generate.Schedule
}

// request returns the loop's request for one text.
func (j Job) request(prompt []int32) batch.Request {
	return batch.Request{
		Prompt: prompt, PromptTopN: -1, Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1},
		Continuations: []batch.Continuation{{}}, ID: j.ID, Priority: j.Schedule.Priority, Tenant: j.Schedule.Tenant, Salt: j.Schedule.Salt, Bypass: j.Schedule.Bypass,
	}
}

// run computes n requests, at most Window at once, and passes their ends to take in order. It
// returns the first error, or the cause of ctx, and then nothing of it is in a step that is
// submitted later. cached is how many tokens came from the prefix cache.
func run(ctx context.Context, loop Loop, n int, request func(i int) batch.Request, take func(i int, end *batch.Done)) (cached int, err error) {
	var open []*batch.Stream // of requests next-len(open) to next-1
	defer func() {
		for _, s := range open {
			s.Cancel()
		}
	}()
	next := 0
	for next < n || len(open) > 0 {
		for next < n && len(open) < Window {
			streams, err := loop.Submit(request(next))
			if errors.Is(err, batch.ErrFull) && len(open) > 0 {
				break // the next end of ours makes room
			}
			if err != nil {
				return cached, fmt.Errorf("text %d: %w", next, err)
			}
			open = append(open, streams[0])
			next++
		}
		first := next - len(open)
		end, err := await(ctx, open[0])
		if err != nil {
			return cached, fmt.Errorf("text %d: %w", first, err)
		}
		cached += open[0].Cached()
		open = open[1:]
		take(first, end)
	}
	return cached, nil
}

// await returns the end of a sequence without tokens.
func await(ctx context.Context, s *batch.Stream) (*batch.Done, error) {
	for {
		events, err := s.Recv(ctx, nil)
		for i := range events {
			if events[i].Done != nil {
				return events[i].Done, nil
			}
		}
		if err != nil {
			return nil, err
		}
		if len(events) == 0 { // the contract of Recv: only after Done
			return nil, fmt.Errorf("%w without a result", batch.ErrClosed)
		}
	}
}
