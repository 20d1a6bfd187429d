package sametest

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
)

// scenario is a loop and what happens to it: a function of its seed and of what asks give alone.
type scenario struct {
	seed   uint64
	kind   kind
	model  int
	layout int          // of the runner, an index of layouts
	cfg    batch.Config // of the loop; its runner's sizes are at most those of the layout
	// together: every request waits before the loop makes its first step.
	together bool
	actors   []actor
}

// actor is one request and how its reader behaves. Moments are counted in events: of everybody's, or of its own.
type actor struct {
	request batch.Request
	asks    []ask // one for each continuation, without the resumed part
	role    string
	follows int // the actor that must have ended before it comes; none: no one
	after   int // it starts when every reader has had this many events, or when no other can have more
	cancel  int // it cancels after this many events of its own; none: never
	rest    int // after this many events its readers pause until no other reader has anything to read; none: never
}

const none = -1

// newActor returns a reader that starts at once and reads to the end.
func newActor(role string, a ask, continuations int) actor {
	out := actor{role: role, follows: none, cancel: none, rest: none, request: batch.Request{
		Prompt: a.prompt, Class: a.class, Params: a.params, MaxTokens: a.tokens, StopIDs: a.stops, PromptTopN: a.topN, Logprobs: a.logprobs,
	}}
	for i := range continuations {
		out.asks = append(out.asks, a.continuation(int32(i)))
		out.request.Continuations = append(out.request.Continuations, batch.Continuation{OutputIndex: int32(i)})
	}
	return out
}

func (a *actor) String() string {
	r := &a.request
	s := fmt.Sprintf("%s (prompt of %d, at most %d tokens, %d continuations", a.role, len(r.Prompt), r.MaxTokens, len(a.asks))
	for _, c := range r.Continuations {
		if len(c.Resumed) > 0 {
			s += fmt.Sprintf(", %d resumed after %d", c.OutputIndex, len(c.Resumed))
		}
	}
	if a.follows != none {
		s += fmt.Sprintf(", after actor %d", a.follows)
	}
	if a.cancel != none {
		s += fmt.Sprintf(", cancelled after %d events", a.cancel)
	}
	if a.rest != none {
		s += fmt.Sprintf(", resting after %d events", a.rest)
	}
	return s + fmt.Sprintf(", salt %q, bypass %v)", r.Salt, r.Bypass)
}

func (s *scenario) String() string {
	r := s.cfg.Runner
	return fmt.Sprintf("%s, %s: %d actors, %d blocks of %d and %d on the host, %d sequences, %d tokens a step, chunk %d", s.kind,
		models[s.model].name, len(s.actors), r.KVBlocks, r.BlockSize, r.HostBlocks, r.MaxSequences, r.MaxBatchedTokens, s.cfg.Chunk)
}
