package relay

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Observer receives the events of generations. Its methods must not block. It is safe for
// concurrent use.
type Observer interface {
	// Placed reports the first lease of a generation and how long the call waited for it. The result
	// receives the further events of that call.
	Placed(model string, waited time.Duration) CallObserver
}

// CallObserver receives the events of one generation, from the goroutine that serves it.
type CallObserver interface {
	// FirstToken reports the time to the first token (TTFT), from the call's arrival.
	FirstToken(sinceArrival time.Duration)
	// Tokens reports n more tokens. It is called for every frame, so it must only add.
	Tokens(n int64)
	// Continued reports that another worker has sent its first frame for the call, or that the
	// stream is lost.
	Continued(Continuation)
	// Ended reports the status code that the caller gets, and the time since the call's arrival.
	Ended(code codes.Code, took time.Duration)
}

// Continuation is how a generation continues after an attempt that did not end it.
type Continuation uint8

// The ways to continue.
const (
	Retried Continuation = iota // from the beginning: the caller had received nothing
	Resumed                     // after the tokens that the caller has, with the same tokens as before
	Inexact                     // like Resumed, but on another numerics class: tokens may differ
	Moved                       // like Resumed, because the worker drains
	Lost                        // not at all, although the caller has a part of the answer
)

// nopObserver ignores all events.
type nopObserver struct{}

func (nopObserver) Placed(string, time.Duration) CallObserver { return nopObserver{} }
func (nopObserver) FirstToken(time.Duration)                  {}
func (nopObserver) Tokens(int64)                              {}
func (nopObserver) Continued(Continuation)                    {}
func (nopObserver) Ended(codes.Code, time.Duration)           {}
