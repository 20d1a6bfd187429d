package relay

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// handOverWait is how long a peer may take to have a place for the stream of a worker that drains.
const handOverWait = 2 * time.Second

// handover moves the stream of a worker that drains to a peer: first the place there, then the end here. What the worker had
// under way is computed again by the peer, and nothing of it was sent. Safe for concurrent use.
type handover struct {
	mu      sync.Mutex
	class   string           // guarded by mu, as all below; of the stream, once it has started
	digest  string           // of the stream's model
	resumes bool             // whether the caller has a part of the stream
	context int64            // the shortest that holds the stream
	open    int              // outputs that have not ended: a peer computes these
	over    bool             // the attempt has ended
	looks   bool             // a peer is looked for, or was found
	again   bool             // the worker began to drain once more meanwhile
	lease   *admission.Lease // the place at the peer
}

// holds notes the context that a peer must have before the stream has started.
func (h *handover) holds(context int64) {
	h.mu.Lock()
	h.context = context
	h.mu.Unlock()
}

// started notes what the peer must be.
func (h *handover) started(class, digest string, context int64) {
	h.mu.Lock()
	h.class, h.digest, h.context, h.resumes = class, digest, context, true
	h.mu.Unlock()
}

// leaves notes how many outputs have not ended.
func (h *handover) leaves(open int) {
	h.mu.Lock()
	h.open = open
	h.mu.Unlock()
}

// begin says whether to look for a peer: not while another look is under way, which one more will follow.
func (h *handover) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.again = h.looks
	h.looks = true
	return !h.again
}

// end ends a look: taken is whether the stream moves to the lease found, more whether to look once more.
func (h *handover) end(lease *admission.Lease) (taken, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
	case lease != nil:
		h.lease, taken = lease, true
	default:
		h.looks, h.again, more = h.again, false, h.again
	}
	return taken, more
}

// close ends it with the attempt; the lease, if there is one, is the caller's.
func (h *handover) close() *admission.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return h.lease
}

// handOver looks for a peer of the same class and, if one has a place, ends the attempt for it. Otherwise the worker is left to finish,
// until it drains again. It runs on a goroutine of its own while it looks, when the worker drains and not before.
func (a *attempt) handOver(up context.Context, cancel context.CancelCauseFunc) {
	for more := a.handover.begin(); more; {
		lease := a.peer(up)
		var taken bool
		if taken, more = a.handover.end(lease); taken {
			cancel(errMoved)
		} else if lease != nil {
			lease.End()
		}
	}
}

// peer is a place on another worker of the same class whose context holds the stream; nil: none has one in time.
func (a *attempt) peer(up context.Context) *admission.Lease {
	h := &a.handover
	h.mu.Lock()
	request := a.rest(h.open)
	request.Unloaded = []string{a.lease.WorkerID} // which its report may not say yet
	request.Context = h.context
	if request.Resumes = request.Resumes || h.resumes; h.resumes {
		request.Length = h.context
		request.ClassID, request.Digest = h.class, h.digest
	} else {
		request.ClassID = a.lease.ClassID
	}
	h.mu.Unlock()
	searching, stop := context.WithTimeout(up, handOverWait)
	defer stop()
	lease, err := a.places.Place(searching, request)
	if err != nil {
		return nil
	}
	return lease
}
