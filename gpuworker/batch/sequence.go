package batch

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
	"github.com/millrace/millrace/internal/fairqueue"
)

// sequence is the state of one continuation. The loop's goroutine owns it. Invariants:
//
//	0 <= computed <= submitted <= length()
//	promptLength <= len(tokens)
//	0 <= sampling <= flying <= depth
//	table covers submitted positions; slot >= 0 and table is set while it has a place
type sequence struct {
	age          uint64 // order of arrival
	request      Request
	stream       *Stream
	promptLength int

	tokens    []int32 // ids that are known: prompt, resumed, sampled
	marked    []int32 // tokens as the prefix cache knows them: see ids; nil where those are the same
	sampling  int     // tokens behind these that steps in flight sample: their ids are not known yet
	submitted int     // positions in steps that were submitted
	computed  int     // of these, positions in steps that have ended: their keys and values are in the blocks
	scored    int     // prompt tokens whose scores were delivered
	told      int     // prompt tokens whose progress was told
	charged   int     // positions that its tenant has paid for, or need not

	slot       int32 // -1: it has no place
	generation uint32
	fresh      bool           // the slot is to be set by the next step; false once a step that sets it is accepted
	table      *kvcache.Table // its blocks; nil while it has no place
	family     *family        // the continuations of its request; nil: it is the only one
	look       kvcache.Look   // for who computes its prefix
	swap       *swapped       // what of it waits in host memory; nil: nothing
	flying     int            // steps in flight that it is in

	// What becomes of it when its last step in flight has ended. Both keep it out of every step submitted later.
	leaving bool // it was preempted: results still count, then it waits again
	over    bool // it has ended: results are dropped, then its place is free
	// cancelled: its end was its reader's wish. Readers also cancel what has ended, when they leave: that is none.
	cancelled bool

	steps       int           // that it was in, with results
	stepTime    time.Duration // of these, on the device
	preemptions int

	arrived      time.Time
	started      time.Time // when it got its first place
	firstToken   time.Time
	lastToken    time.Time
	paused       bool      // its reader had to catch up first when the last round was planned
	pausedSince  time.Time // since when it is, as reports saw it; zero: it is not
	stalledSince time.Time // since when its reader keeps others waiting; zero: it does not
}

// newSequence is continuation i of a request, which scores the prompt and tells its progress if it is the first.
func newSequence(l *Loop, r Request, i int) *sequence {
	c := r.Continuations[i]
	r.Params.PromptLength, r.Params.OutputIndex = int32(len(r.Prompt)), c.OutputIndex
	if i > 0 {
		r.PromptTopN, r.Progress = -1, false
	}
	tokens := make([]int32, 0, len(r.Prompt)+len(c.Resumed)+min(r.MaxTokens, 64))
	s := &sequence{
		request: r, stream: newStream(l), promptLength: len(r.Prompt), slot: -1, arrived: time.Now(),
		tokens: append(append(tokens, r.Prompt...), c.Resumed...),
	}
	if !l.cfg.OneClass && !r.Bypass {
		s.marked = slices.Clone(s.tokens)
		from := s.promptLength
		if r.Class == engine.Decode {
			from = 0
		}
		for i := from; i < len(s.marked); i++ {
			s.marked[i] |= kvcache.Decoded
		}
	}
	return s
}

// ids are its tokens as the prefix cache compares them. Where the kernel classes give different bits, those that the decode
// class computes are marked: a block is reused only where the same bits would be computed.
func (s *sequence) ids() []int32 {
	if s.marked == nil {
		return s.tokens
	}
	return s.marked
}

// push adds a sampled token.
func (s *sequence) push(id int32) {
	s.tokens = append(s.tokens, id)
	if s.marked != nil {
		s.marked = append(s.marked, id|kvcache.Decoded)
	}
}

// length is how many tokens it has, those in flight counted.
func (s *sequence) length() int { return len(s.tokens) + s.sampling }

// generated is how many tokens follow the prompt and are known: resumed and sampled.
func (s *sequence) generated() int { return len(s.tokens) - s.promptLength }

// exhausted says whether no step is left to be planned: the results in flight are its last.
func (s *sequence) exhausted() bool {
	return s.submitted >= s.promptLength && s.length()-s.promptLength >= s.request.MaxTokens
}

// decoding says whether all that is left to compute is the token sampled last.
func (s *sequence) decoding() bool {
	return s.submitted >= s.promptLength && s.submitted == s.length()-1
}

// previousSample is the token of a sequence whose last sample is still in flight.
var previousSample = []int32{engine.PreviousSample}

// next is the run of tokens to compute next: at most limit, of one kernel class, prompt and generated apart.
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

// scoreRows is how many score rows the next n tokens bring: one for each prompt token that one of them predicts, unless it
// was scored before a preemption.
func (s *sequence) scoreRows(n int) int {
	if s.request.PromptTopN < 0 {
		return 0
	}
	return max(0, min(s.submitted+n, s.promptLength-1)-max(s.submitted, s.scored))
}

// spared is how many of its first positions it need not compute if their keys and values are to be had: all but the last, whose
// logits are wanted, and while its prompt is scored only those that predict what was scored before.
func (s *sequence) spared() int {
	if s.request.PromptTopN >= 0 && s.scored < s.promptLength-1 {
		return s.scored
	}
	return len(s.tokens) - 1
}

// rewind forgets what is computed; tokens stay, to be computed again. No step that it is in is in flight.
func (s *sequence) rewind() {
	s.submitted, s.computed, s.table, s.slot, s.leaving = 0, 0, nil, -1, false
}

func (s *sequence) finish(reason Reason, stopID int32, now time.Time) {
	s.emit(Event{Done: &Done{Reason: reason, StopID: stopID, Generated: s.generated()}}, now)
	s.stream.end(nil)
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

// full says whether its reader must catch up before more of it is computed. The samples in flight count, so that a stream
// never holds more of them than its limit; what else a step brings comes on top: scores, progress, the end.
func (s *sequence) full() bool { return s.stream.full(s.sampling) }

// class is where it stands in the queue.
func (s *sequence) class() fairqueue.Class {
	return fairqueue.Class{Priority: s.request.Priority, Tenant: s.request.Tenant}
}

// byUrgency orders sequences: the higher priority first, then the older. The last is the first to lose its place.
func byUrgency(a, b *sequence) int {
	if a.request.Priority != b.request.Priority {
		return cmp.Compare(b.request.Priority, a.request.Priority)
	}
	return cmp.Compare(a.age, b.age)
}
