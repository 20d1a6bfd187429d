package relay

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// handOverWait is how long a search for a peer waits for a free slot.
const handOverWait = 2 * time.Second

// handover moves a stream from a draining worker to a peer. It leases a slot on the peer first and
// ends the attempt after that, so the stream never waits without a worker. Tokens that the draining
// worker has computed and not sent are computed again by the peer. It is safe for concurrent use.
type handover struct {
	mu struct {
		sync.Mutex
		class, digest string // of the stream; empty before `started`
		resumes       bool   // whether the caller has a part of the stream
		context       int64  // the shortest context that holds the stream
		open          int    // outputs that have not ended: those that the peer computes
		closed        bool   // whether the attempt has ended
		searching     bool   // whether a search runs, or has found a peer
		searchAgain   bool   // whether the worker announced another drain during the search
		lease         *admission.Lease
	}
}

// setContext sets the context that a peer must have while the stream has not started.
func (h *handover) setContext(context int64) {
	h.mu.Lock()
	h.mu.context = context
	h.mu.Unlock()
}

// setStream sets the class, digest and context that a peer must have once the stream has started.
func (h *handover) setStream(class, digest string, context int64) {
	h.mu.Lock()
	h.mu.class, h.mu.digest, h.mu.context, h.mu.resumes = class, digest, context, true
	h.mu.Unlock()
}

// setOpen sets how many outputs have not ended.
func (h *handover) setOpen(open int) {
	h.mu.Lock()
	h.mu.open = open
	h.mu.Unlock()
}

// beginSearch reports whether to search for a peer. If a search runs already, it returns false, and
// that search is followed by another one.
func (h *handover) beginSearch() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.searchAgain = h.mu.searching
	h.mu.searching = true
	return !h.mu.searchAgain
}

// endSearch ends a search that found lease, or nothing. moves reports whether the stream moves to
// the lease, again whether to search once more.
func (h *handover) endSearch(lease *admission.Lease) (moves, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.closed:
	case lease != nil:
		h.mu.lease, moves = lease, true
	default:
		h.mu.searching, h.mu.searchAgain, again = h.mu.searchAgain, false, h.mu.searchAgain
	}
	return moves, again
}

// close ends the handover with the attempt. The caller owns the lease that it returns, if any.
func (h *handover) close() *admission.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.closed = true
	return h.mu.lease
}

// handOver searches for a peer of the same class. If a peer has a free slot, it ends the attempt;
// otherwise the worker finishes the stream, unless it drains again. handOver runs on its own
// goroutine, which exists only while a draining worker's stream searches.
func (a *attempt) handOver(up context.Context, cancel context.CancelCauseFunc) {
	for again := a.handover.beginSearch(); again; {
		lease := a.leasePeer(up)
		var moves bool
		if moves, again = a.handover.endSearch(lease); moves {
			cancel(errMoved)
		} else if lease != nil {
			lease.End()
		}
	}
}

// leasePeer leases a slot on another worker of the same class whose context holds the stream. It
// returns nil if no worker has one in time.
func (a *attempt) leasePeer(up context.Context) *admission.Lease {
	h := &a.handover
	h.mu.Lock()
	request := a.remaining(h.mu.open)
	request.Unloaded = []string{a.lease.WorkerID} // its report may not show the drain yet
	request.Context = h.mu.context
	if request.Resumes = request.Resumes || h.mu.resumes; h.mu.resumes {
		request.Length = h.mu.context
		request.ClassID, request.Digest = h.mu.class, h.mu.digest
	} else {
		request.ClassID = a.lease.ClassID
	}
	h.mu.Unlock()
	searching, stop := context.WithTimeout(up, handOverWait)
	defer stop()
	lease, err := a.placer.Place(searching, request)
	if err != nil {
		return nil
	}
	return lease
}
