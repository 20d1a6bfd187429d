package generate

import (
	"sync"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Started is what is known when the first event of any continuation is there.
type Started struct {
	Cached  int   // tokens of the prompt that came from the prefix cache
	Resumed []int // tokens taken of Resume by OutputIndex; nil unless the request is resumed
}

// Tokens is a run of generated tokens of one continuation and the text they complete.
type Tokens struct {
	OutputIndex int
	TokenIndex  int // of the first, those resumed counted
	Rows        []engine.RowResult
	Text        string // valid UTF-8
	TextBytes   []int  // of Text, by row; theirs until the sink returns
}

// Finished is the end of one continuation.
type Finished struct {
	OutputIndex int
	Reason      batch.Reason
	Stop        string // the stop string, when one matched
	StopID      int32  // the stop token, when Reason is Stop and Stop is empty
	Generated   int    // tokens of the continuation, those resumed counted
	Cached      int    // tokens of the prompt that came from the prefix cache
	Timings     batch.Timings
}

// Sink is told what happens, never by two goroutines at once. An error ends the run.
type Sink interface {
	// Prefilled: so many prompt tokens are computed. It may come before Started.
	Prefilled(n int) error
	// Started comes once, with the first event of those below.
	Started(Started) error
	// Scored: scores of prompt tokens, the first of them at index from.
	Scored(from int, rows []engine.RowResult) error
	Tokens(Tokens) error
	Finished(Finished) error
}

// teller tells a sink what several continuations have to say, one event at a time, and that the request has started before
// the first that is more than progress.
type teller struct {
	mu     sync.Mutex // held over calls of sink, which need not be safe for concurrent use
	sink   Sink
	begun  bool
	start  func() Started
	atOnce []Finished // ends that follow Started: of continuations that need no computing
}

// begin tells that the request has started, once. The caller holds mu.
func (t *teller) begin() error {
	if t.begun {
		return nil
	}
	t.begun = true
	start := t.start()
	if err := t.sink.Started(start); err != nil {
		return err
	}
	for _, f := range t.atOnce {
		f.Cached = start.Cached
		if err := t.sink.Finished(f); err != nil {
			return err
		}
	}
	return nil
}

// tell tells one event behind Started.
func (t *teller) tell(event func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.begin(); err != nil {
		return err
	}
	return event()
}

// started tells what there is to tell where no continuation has an event to come.
func (t *teller) started() error { return t.tell(func() error { return nil }) }

func (t *teller) prefilled(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sink.Prefilled(n)
}

func (t *teller) scored(from int, rows []engine.RowResult) error {
	return t.tell(func() error { return t.sink.Scored(from, rows) })
}

func (t *teller) tokens(out Tokens) error {
	return t.tell(func() error { return t.sink.Tokens(out) })
}

func (t *teller) finished(f Finished) error {
	return t.tell(func() error { return t.sink.Finished(f) })
}
