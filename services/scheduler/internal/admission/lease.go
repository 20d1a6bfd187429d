package admission

import (
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Lease is a slot on a worker for one attempt. It must be ended. It is not safe for concurrent use.
type Lease struct {
	// WorkerID is the worker's id.
	WorkerID string
	// ClassID is the numerics class of the model on the worker.
	ClassID string
	// Link is the connection to the worker. The lease holds it open.
	Link *fleet.Link
	// Cached is an estimate of the prompt tokens that are a prefix hit on the worker.
	Cached int64
	// Context is the worker's context length, Longest the longest of the workers that serve the
	// digest; 0: not known.
	Context, Longest int64

	choice  route.Choice
	ended   func(l *Lease)
	model   string
	class   class
	crowded bool  // whether the worker was at its limit for this process when the slot became free
	left    int64 // tokens that the request was estimated to need and that are not computed
	excess  int64 // tokens computed beyond the estimate
	charged bool  // whether its tenant was charged for it, because it had waited
	started bool
	vacant  bool
}

// Started reports that the prompt is computed, so that it no longer delays other prompts on the
// worker. Progress implies it.
func (l *Lease) Started() {
	if !l.started {
		l.started = true
		l.choice.Started()
	}
}

// Progress subtracts computed tokens from the worker's load, but never more than were added.
func (l *Lease) Progress(tokens int64) {
	l.Started()
	l.choice.Progress(tokens)
	l.excess += max(tokens-l.left, 0)
	l.left = max(l.left-tokens, 0)
}

// Vacate frees the slot, which a waiter may get at once. The relay calls it before End, as soon as
// the worker has nothing of the request left to compute. Only the first call has an effect.
func (l *Lease) Vacate() {
	if l.vacant {
		return
	}
	l.vacant = true
	l.crowded = l.choice.Crowded()
	l.choice.End()
	l.ended(l)
}

// End frees the slot and releases the link.
func (l *Lease) End() {
	l.Vacate()
	l.Link.Release()
}

// slotFreed settles the account of a lease and grants its slot to a waiter. If the worker was at
// its limit over all models, its slot may serve a waiter of any of them.
func (a *Admission) slotFreed(l *Lease) {
	if q := a.queueIfAny(l.model); q != nil {
		if l.excess > 0 || l.charged && l.left > 0 {
			q.mu.Lock()
			q.mu.queue.settle(l)
			q.mu.Unlock()
		}
		q.dispatch()
	}
	if l.crowded {
		a.dispatchAll()
	}
}
