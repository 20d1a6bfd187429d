package batch

import (
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// sequence is the state of one request. Invariants: 0 <= computed <= len(tokens), promptLength <= len(tokens),
// blocks cover computed, slot >= 0 while admitted.
type sequence struct {
	age          uint64 // order of arrival
	request      Request
	stream       *Stream
	tokens       []int32 // prompt, then generated
	promptLength int
	computed     int // positions whose KV is in the cache
	scored       int // prompt tokens scored
	slot         int32
	generation   uint32
	fresh        bool // the slot is to be set by the next step; false once a step that sets it is accepted
	blocks       []int32
	arrived      time.Time
	started      time.Time
	firstToken   time.Time
	stalledSince time.Time
}

// newSequence is continuation i of a request, which scores the prompt and tells its progress if it is the first.
func newSequence(l *Loop, r Request, i int) *sequence {
	c := r.Continuations[i]
	r.Params.PromptLength, r.Params.OutputIndex = int32(len(r.Prompt)), c.OutputIndex
	if i > 0 {
		r.PromptTopN, r.Progress = -1, false
	}
	tokens := make([]int32, 0, len(r.Prompt)+len(c.Resumed)+min(r.MaxTokens, 64))
	return &sequence{
		request: r, stream: newStream(l), promptLength: len(r.Prompt), slot: -1, arrived: time.Now(),
		tokens: append(append(tokens, r.Prompt...), c.Resumed...),
	}
}

func (s *sequence) generated() int { return len(s.tokens) - s.promptLength }

// decoding says whether all that is left to compute is the token sampled last.
func (s *sequence) decoding() bool {
	return s.computed >= s.promptLength && s.computed == len(s.tokens)-1
}

// next is the run of tokens to compute next: at most limit, of one kernel class, prompt and generated apart.
func (s *sequence) next(limit int) (class engine.KernelClass, tokens []int32) {
	end := len(s.tokens)
	class = engine.Decode
	if s.computed < s.promptLength {
		class, end = s.request.Class, s.promptLength
		if class == engine.Decode {
			limit = min(limit, 1)
		}
	}
	return class, s.tokens[s.computed:min(end, s.computed+limit)]
}

// scoreRows is how many score rows the next n tokens bring: one for each prompt token that one of them predicts, unless it
// was scored before a preemption.
func (s *sequence) scoreRows(n int) int {
	if s.request.PromptTopN < 0 {
		return 0
	}
	return max(0, min(s.computed+n, s.promptLength-1)-max(s.computed, s.scored))
}

// rewind forgets what is computed; tokens stay, to be computed again.
func (s *sequence) rewind() {
	s.computed, s.blocks, s.slot = 0, nil, -1
}

func (s *sequence) finish(reason Reason, stopID int32, now time.Time) {
	s.emit(Event{Done: &Done{Reason: reason, StopID: stopID, Generated: s.generated()}}, now)
	s.stream.end(nil)
}

func (s *sequence) emit(e Event, now time.Time) {
	t := Timings{Queue: s.started.Sub(s.arrived), Prefill: now.Sub(s.started)}
	if !s.firstToken.IsZero() {
		t.Prefill, t.Decode = s.firstToken.Sub(s.started), now.Sub(s.firstToken)
	}
	s.stream.push(e, t)
}
