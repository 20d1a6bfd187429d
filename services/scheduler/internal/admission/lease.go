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

	load *route.Load
	left int64 // tokens still counted in load
}

// Progress takes computed tokens off the worker's load, never more than were counted.
func (l *Lease) Progress(tokens int64) {
	tokens = min(tokens, l.left)
	l.left -= tokens
	l.load.Progress(tokens)
}

// End gives the place and the link back.
func (l *Lease) End() {
	l.load.End(l.left)
	l.Link.Release()
}
