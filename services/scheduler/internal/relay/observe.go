package relay

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Observer is told how generations go. Safe for concurrent use; its methods return at once.
type Observer interface {
	// Placed: a call of a model has its first place on a worker, so long after it came.
	Placed(model string, waited time.Duration) CallObserver
}

// CallObserver is told how one generation goes, by its own goroutine.
type CallObserver interface {
	// FirstToken: its first token came, so long after the call did.
	FirstToken(sinceArrival time.Duration)
	// Tokens: so many came. It is called for every frame, and does nothing but add.
	Tokens(n int64)
	// Again: another worker has begun to go on with it, or none does.
	Again(Again)
	// Ended: it has ended so long after it came, with the code that its caller gets.
	Ended(code codes.Code, took time.Duration)
}

// Again says how a generation goes on behind the end of an attempt.
type Again uint8

// Ways to go on.
const (
	Retried Again = iota // from its beginning: its caller had nothing of it
	Resumed              // behind what its caller has, to the same tokens
	Inexact              // so, but in another class
	Moved                // as Resumed, because its worker drains
	Lost                 // not at all, though its caller has a part
)

// unseen is an observer of nothing.
type unseen struct{}

func (unseen) Placed(string, time.Duration) CallObserver { return unseen{} }
func (unseen) FirstToken(time.Duration)                  {}
func (unseen) Tokens(int64)                              {}
func (unseen) Again(Again)                               {}
func (unseen) Ended(codes.Code, time.Duration)           {}
