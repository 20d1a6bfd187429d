package admission

import (
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Lease is one attempt's place on one worker. One goroutine uses it. End it.
type Lease struct {
	// WorkerID is the worker's.
	WorkerID string
	// ClassID is the class of the model on the worker.
	ClassID string
	// Link is the connection to it, held.
	Link *fleet.Link
	// Cached is how many tokens of the prompt the worker was taken to have, estimated.
	Cached int64
	// Context is the worker's, Longest that of the workers which serve the digest; 0 is not known.
	Context, Longest int64

	choice  route.Choice
	ended   func(l *Lease)
	model   string
	class   class
	crowded bool  // at its end, the worker had as many requests as it may
	left    int64 // tokens that the request was taken to need and that are not computed
	beyond  int64 // tokens computed beyond those
	charged bool  // whether its tenant was charged for it: it had waited
	started bool
	vacant  bool
}

// Started says that the prompt is computed: it holds nobody up on the worker any more. Progress says so too.
func (l *Lease) Started() {
	if !l.started {
		l.started = true
		l.choice.Started()
	}
}

// Progress takes computed tokens off the worker's load, never more than were counted.
func (l *Lease) Progress(tokens int64) {
	l.Started()
	l.choice.Progress(tokens)
	l.beyond += max(tokens-l.left, 0)
	l.left = max(l.left-tokens, 0)
}

// Vacate gives the place back, once; who waits for one gets it. It may come before End, as soon as the worker has nothing of the
// request left to compute.
func (l *Lease) Vacate() {
	if l.vacant {
		return
	}
	l.vacant = true
	l.crowded = l.choice.Crowded()
	l.choice.End()
	l.ended(l)
}

// End gives the place and the link back.
func (l *Lease) End() {
	l.Vacate()
	l.Link.Release()
}
