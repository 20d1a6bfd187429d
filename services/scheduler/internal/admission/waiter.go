package admission

import (
	"time"

	"github.com/millrace/millrace/internal/fairqueue"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// maxOvertaken is how many later requests may take slots that were too small for a waiter. After
// that, requests behind it wait until it has its own. A less urgent request counts as lesserWeight.
const maxOvertaken, lesserWeight = 16, 4

// class is the priority and tenant of a request.
type class = fairqueue.Flow

// waiter is one request that waits for a slot.
type waiter struct {
	request  route.Request
	deadline time.Time // of its call; zero: none
	since    time.Time // when it joined the queue
	until    time.Time // when it is refused if it still waits; zero: never
	// overtaken is how many requests behind it took slots that were too small for it.
	overtaken   int
	absentSince time.Time // since when no worker could serve it at all; zero: one can, or it was not tried
	granted     chan grant

	// The last attempt to acquire a slot for it:
	full      bool  // every worker was full
	tooLarge  bool  // a worker had room, but too few slots or too little memory for the request
	reach     int64 // route.Choice.Reach
	mayReturn bool  // a worker with the digest and class that it is pinned to may come back
}

// grant is the end of a wait: a lease or an error.
type grant struct {
	lease *Lease
	err   error
}

// hadSlot reports whether its call had a slot before, and lost it with its worker.
func (w *waiter) hadSlot() bool { return w.request.Arrived != 0 }

// arrived returns when its call arrived.
func (w *waiter) arrived() time.Time {
	if w.hadSlot() {
		return time.Unix(0, w.request.Arrived)
	}
	return w.since
}

func (w *waiter) class() class { return class{Priority: w.request.Priority, Tenant: w.request.Tenant} }

// countOvertaken counts that a later request took a slot before the waiters that were skipped. A
// waiter that could not have used that worker at all was not overtaken.
func countOvertaken(skipped []*waiter, by *waiter, choice *route.Choice) {
	for _, w := range skipped {
		switch {
		case !choice.Suits(&w.request):
		case w.class().Priority > by.class().Priority, w.request.Resumes && !by.request.Resumes:
			w.overtaken += lesserWeight
		default:
			w.overtaken++
		}
	}
}

// sameFailure returns a waiter of failed whose failure implies that w fails, too, so that w need
// not be tried; nil: none does. It keeps a dispatch cheap when a thousand equal requests wait.
func sameFailure(w *waiter, failed []*waiter) *waiter {
	a := &w.request
	for _, f := range failed {
		b := &f.request
		// Every worker that w may use was a candidate for f.
		covered := (f.reach == 0 || a.Reaches(b, f.reach)) && len(b.Exclude)+len(b.Unloaded) == 0 &&
			(b.Digest == "" || a.Digest == b.Digest) && (b.ClassID == "" || a.ClassID == b.ClassID)
		var fails bool // for the reason for which f failed
		switch {
		case f.full:
			fails = b.Resumes || !a.Resumes // streams that resume may use slots that others may not
		case f.tooLarge:
			fails = (b.Resumes || !a.Resumes) && a.Sequences >= b.Sequences && a.Prompt >= b.Prompt
		default:
			fails = b.Resumes == a.Resumes && b.Pinned() == a.Pinned() && b.Digest == a.Digest && b.ClassID == a.ClassID
		}
		if covered && fails {
			return f
		}
	}
	return nil
}
