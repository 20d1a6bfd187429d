package generate

import (
	"sync"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/tools"
)

// Started is known with the first event of any continuation.
type Started struct {
	Cached  int   // prompt tokens from the prefix cache
	Resumed []int // tokens taken from Resume by OutputIndex; nil unless resumed
}

// Tokens is a run of generated tokens of one continuation and the text that they complete.
type Tokens struct {
	OutputIndex int
	TokenIndex  int // of the first, including resumed ones
	Rows        []engine.RowResult
	Text        string // valid UTF-8
	TextBytes   []int  // of Text, by row; valid until the sink returns
	Parts       []Part // of Text, in order, with Request.Parts; valid until the sink returns
}

// Part is a run of the text of one kind. The parts of an event follow each other and cover its text.
type Part struct {
	Kind  tools.Kind
	Bytes int
	Call  int    // index of a call
	Name  string // of the tool, in the first part of a call, which may have no bytes
	Row   int    // that begins it
}

// Finished is the end of one continuation.
type Finished struct {
	OutputIndex int
	Reason      batch.Reason
	Stop        string // the stop string, when one matched
	StopID      int32  // the stop token, when Reason is Stop and Stop is empty
	Generated   int    // tokens of the continuation, including resumed ones
	Cached      int    // prompt tokens from the prefix cache
	Reasoning   int    // of the tokens generated, those of reasoning; 0 without Request.Parts
	Timings     batch.Timings
}

// Sink receives the events of a run, never from two goroutines at once. An error ends the run.
type Sink interface {
	// Prefilled reports how many prompt tokens are computed. It may precede Started.
	Prefilled(n int) error
	// Started comes once, before the events below.
	Started(Started) error
	// Scored reports scores of prompt tokens, the first of them at index from.
	Scored(from int, rows []engine.RowResult) error
	Tokens(Tokens) error
	Finished(Finished) error
}

// serialSink passes the events of several continuations on, one at a time, and sends Started first.
// It holds its lock during calls of the sink, which need not be safe for concurrent use.
type serialSink struct {
	next Sink
	mu   struct {
		sync.Mutex
		started bool
	}
	start     func() Started
	immediate []Finished // ends of continuations that need no computation; sent after Started
}

// sendStartedLocked sends Started once.
func (t *serialSink) sendStartedLocked() error {
	if t.mu.started {
		return nil
	}
	t.mu.started = true
	start := t.start()
	if err := t.next.Started(start); err != nil {
		return err
	}
	for _, f := range t.immediate {
		f.Cached = start.Cached
		if err := t.next.Finished(f); err != nil {
			return err
		}
	}
	return nil
}

// send sends one event after Started.
func (t *serialSink) send(event func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.sendStartedLocked(); err != nil {
		return err
	}
	return event()
}

// started sends Started when no continuation will have an event.
func (t *serialSink) started() error { return t.send(func() error { return nil }) }

func (t *serialSink) prefilled(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.next.Prefilled(n)
}

func (t *serialSink) scored(from int, rows []engine.RowResult) error {
	return t.send(func() error { return t.next.Scored(from, rows) })
}

func (t *serialSink) tokens(out Tokens) error {
	return t.send(func() error { return t.next.Tokens(out) })
}

func (t *serialSink) finished(f Finished) error {
	return t.send(func() error { return t.next.Finished(f) })
}
