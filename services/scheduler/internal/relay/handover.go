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
	over    bool             // the attempt has ended
	lease   *admission.Lease // the place at the peer
}

// started notes what the peer must be.
func (h *handover) started(class, digest string) {
	h.mu.Lock()
	h.class, h.digest, h.resumes = class, digest, true
	h.mu.Unlock()
}

// close ends it with the attempt; the lease, if there is one, is the caller's.
func (h *handover) close() *admission.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return h.lease
}

// handOver looks for a peer of the same class and, if one has a place, ends the attempt for it. Otherwise the worker is left to
// finish. It runs on a goroutine of its own that ends with it, when the worker drains and not before.
func (a *attempt) handOver(up context.Context, cancel context.CancelCauseFunc) {
	h := &a.handover
	request := a.route                            // which nobody changes
	request.Unloaded = []string{a.lease.WorkerID} // which its report may not say yet
	h.mu.Lock()
	if request.Resumes = request.Resumes || h.resumes; h.resumes {
		request.ClassID, request.Digest = h.class, h.digest
	} else {
		request.ClassID = a.lease.ClassID
	}
	h.mu.Unlock()
	searching, stop := context.WithTimeout(up, handOverWait)
	defer stop()
	lease, err := a.places.Place(searching, request)
	if err != nil {
		return
	}
	h.mu.Lock()
	over := h.over
	if !over {
		h.lease = lease
	}
	h.mu.Unlock()
	if over {
		lease.End()
		return
	}
	cancel(errMoved)
}
