package batch

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/kvcache"
	"github.com/millrace/millrace/internal/fairqueue"
)

// sequence is the state of one continuation. Run's goroutine owns it. Invariants:
//
//	0 <= computed <= submitted <= length()
//	promptLength <= len(tokens)
//	0 <= sampling <= inFlight <= depth
//	slot >= 0 and table != nil exactly while it has a slot; table covers submitted positions
type sequence struct {
	age          uint64 // order of arrival
	request      Request
	stream       *Stream
	promptLength int

	tokens       []int32 // known ids: prompt, resumed, sampled, forced
	cacheIDs     []int32 // tokens as the prefix cache compares them, see ids; nil: the same
	sampling     int     // tokens after these that steps in flight sample; their ids are unknown
	submitted    int     // positions in submitted steps
	computed     int     // of these, positions in finished steps: their KV is in the blocks
	scored       int     // prompt tokens whose scores were delivered
	progressSent int     // prompt tokens that the last progress event reported
	charged      int     // positions that were charged to its tenant
	pool         pool    // of Request.Pool
	choices      []float32

	guide      guide.State // after all of tokens but unfollowed; the zero value: no grammar
	unfollowed []int32
	masking    masking
	forced     int  // tokens that are forced behind the next one to compute; 0: none
	unsent     int  // of tokens, the last ones, which a step in flight delivers
	complete   bool // the last of tokens ends it, and is not delivered yet

	slot       int32 // -1: none
	generation uint32
	fresh      bool           // no accepted step has set the slot yet
	table      *kvcache.Table // its blocks; nil without a slot
	group      *sequenceGroup // the continuations of its request; nil: it is the only one
	cursor     kvcache.Cursor // where awaitsPrefix continues its search
	swap       *hostCopy      // its blocks in host memory; nil: none
	// States of layers that carry one. It holds all of these; see states.go.
	state         int32        // where its state is: 0 = the slot's own, else a saved one
	promptState   savedState   // that other members of its group start with
	plannedStates []savedState // that its next part writes, by position
	savedStates   []savedState // that submitted parts wrote and that are not findable yet
	lastState     int          // position of the last state that it saved, or with which it started
	tail          savedState   // after the last whole block of its answer; see tailPosition
	// left is how far cached blocks went on beyond the state, or the window blocks, with which it
	// started; 0: no further.
	left      int
	hit       bool // it counts as a prefix hit
	recalling bool // it has more to recall when its step in flight has ended, see continueRecalls
	inFlight  int  // steps in flight that contain it

	// preempted and ended take effect when the last step in flight ends. Both keep the sequence out
	// of every later step.
	preempted bool // results still count, then it waits again
	ended     bool // results are dropped, then its slot is free
	finished  bool // it ended with a Done event
	// cancelled: its reader ended it. A reader that leaves also cancels streams that have ended;
	// those do not count.
	cancelled bool

	steps       int           // finished steps that contained it
	stepTime    time.Duration // their time on the device
	preemptions int

	arrived      time.Time
	started      time.Time // when it got its first slot
	firstToken   time.Time
	lastToken    time.Time
	paused       bool      // its reader had to catch up when the last round was planned
	pausedSince  time.Time // first report that saw it paused; zero: not paused
	stalledSince time.Time // since when its reader makes others wait; zero: it does not
}

// newSequence returns continuation i of a request. Only the first scores the prompt and reports
// progress.
func newSequence(l *Loop, r Request, i int) *sequence {
	c := r.Continuations[i]
	r.Params.PromptLength, r.Params.OutputIndex = int32(len(r.Prompt)), c.OutputIndex
	if i > 0 {
		r.PromptTopN, r.Progress = -1, false
	}
	tokens := make([]int32, 0, len(r.Prompt)+len(c.Resumed)+min(r.MaxTokens, 64))
	s := &sequence{
		request: r, stream: newStream(l), promptLength: len(r.Prompt), slot: -1, arrived: time.Now(),
		guide:  c.Guide,
		tokens: append(append(tokens, r.Prompt...), c.Resumed...),
	}
	if !l.cfg.OneClass && !r.Bypass {
		s.cacheIDs = slices.Clone(s.tokens)
		from := s.promptLength
		if r.Class == engine.Decode {
			from = 0
		}
		for i := from; i < len(s.cacheIDs); i++ {
			s.cacheIDs[i] |= kvcache.Decoded
		}
	}
	return s
}

// ids returns its tokens as the prefix cache compares them. If the kernel classes give different
// bits, ids that the decode class computes are marked, so that a block is reused only where the
// same bits would be computed.
func (s *sequence) ids() []int32 {
	if s.cacheIDs == nil {
		return s.tokens
	}
	return s.cacheIDs
}

// push appends a sampled token.
func (s *sequence) push(id int32) {
	s.tokens = append(s.tokens, id)
	if s.cacheIDs != nil {
		s.cacheIDs = append(s.cacheIDs, id|kvcache.Decoded)
	}
}

// length is the number of its tokens, including those that steps in flight sample.
func (s *sequence) length() int { return len(s.tokens) + s.sampling }

// generated is the number of known tokens after the prompt, resumed or sampled.
func (s *sequence) generated() int { return len(s.tokens) - s.promptLength }

// exhausted reports whether its last step is submitted.
func (s *sequence) exhausted() bool {
	return s.submitted >= s.promptLength && s.length()-s.promptLength >= s.request.MaxTokens
}

// decoding reports whether the last sampled token, and those that are forced behind it, are all that is left to
// compute.
func (s *sequence) decoding() bool {
	return s.submitted >= s.promptLength && s.submitted < s.length() && s.submitted+1+s.forced >= s.length()
}

// previousSample is the run of a sequence whose last sample is still in flight.
var previousSample = []int32{engine.PreviousSample}

// next returns the tokens to compute next: at most limit, all of one kernel class. Prompt and
// generated tokens never share a run.
func (s *sequence) next(limit int) (class engine.KernelClass, tokens []int32) {
	if s.submitted == len(s.tokens) {
		return engine.Decode, previousSample
	}
	end := len(s.tokens)
	class = engine.Decode
	if s.submitted < s.promptLength {
		class, end = s.request.Class, s.promptLength
		if class == engine.Decode {
			limit = min(limit, 1)
		}
	}
	return class, s.tokens[s.submitted:min(end, s.submitted+limit)]
}

// scoreRows is the number of score rows of the next n tokens: one for each prompt token that they
// predict, unless it was scored before a preemption, or one for each choice behind the last.
func (s *sequence) scoreRows(n int) int {
	if s.submitted < s.promptLength && s.submitted+n >= s.promptLength && len(s.request.Choices) > 0 {
		return len(s.request.Choices)
	}
	if s.request.PromptTopN < 0 {
		return 0
	}
	return max(0, min(s.submitted+n, s.promptLength-1)-max(s.submitted, s.scored))
}

// reusable is how many of its first positions may come from cached blocks: all but the last, whose
// logits are needed. While its prompt is being scored or pooled, only positions whose predictions
// were scored, or whose hidden rows were delivered.
func (s *sequence) reusable() int {
	if n, pooling := s.unpooled(); pooling {
		return n
	}
	if s.request.PromptTopN >= 0 && s.scored < s.promptLength-1 {
		return s.scored
	}
	return len(s.tokens) - 1
}

// rewind resets the sequence to uncomputed. Its tokens stay. No step in flight may contain it.
func (s *sequence) rewind() {
	s.submitted, s.computed, s.forced, s.table, s.slot, s.preempted, s.recalling = 0, 0, 0, nil, -1, false, false
}

func (s *sequence) finish(reason Reason, stopID int32, now time.Time) {
	s.emit(Event{Done: &Done{
		Reason: reason, StopID: stopID, Generated: s.generated(), Vector: s.pool.vector(), Choices: s.choices,
	}}, now)
	s.stream.end(nil)
	s.finished = true
}

func (s *sequence) emit(e Event, now time.Time) {
	t := Timings{
		Queue: s.started.Sub(s.arrived), Prefill: now.Sub(s.started), Steps: s.steps, StepTime: s.stepTime, Preemptions: s.preemptions,
	}
	if !s.firstToken.IsZero() {
		t.Prefill, t.Decode = s.firstToken.Sub(s.started), now.Sub(s.firstToken)
	}
	s.stream.push(e, t)
}

// full reports whether its reader must catch up. Samples in flight count, so a stream never holds
// more of them than its limit. Forced tokens, scores, progress and the end may exceed the limit.
func (s *sequence) full() bool { return s.stream.full(s.sampling + s.unsent) }

// class is its priority and tenant in the queue.
func (s *sequence) class() fairqueue.Flow {
	return fairqueue.Flow{Priority: s.request.Priority, Tenant: s.request.Tenant}
}

// byUrgency orders sequences by priority, then by age. The last one is preempted first.
func byUrgency(a, b *sequence) int {
	if a.request.Priority != b.request.Priority {
		return cmp.Compare(b.request.Priority, a.request.Priority)
	}
	return cmp.Compare(a.age, b.age)
}
