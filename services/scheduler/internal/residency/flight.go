package residency

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// key is what is loaded: a model, of a digest unless that is empty.
type key struct{ model, digest string }

// flight is one load that requests wait for.
type flight struct {
	key     key
	id      string        // of the request that it was begun for
	waiting int           // guarded by Residency.mu
	over    chan struct{} // closed at the end
	err     error         // a status; set before over is closed
	last    atomic.Pointer[pb.LoadModelResponse]
}

// stage says how far the load is.
func (f *flight) stage() string {
	event := f.last.Load()
	p := event.GetProgress()
	if p == nil {
		return "just asked for"
	}
	text := strings.ToLower(strings.TrimPrefix(p.GetState().String(), "LOAD_STATE_")) + " on " + event.GetWorkerId()
	if p.GetBytesTotal() > 0 {
		text += fmt.Sprintf(", %d of %d bytes", p.GetBytesDone(), p.GetBytesTotal())
	}
	return text
}

// errOld: a load has ended since the placer refused, and it might not any more.
var errOld = errors.New("the refusal is older than the end of a load")

// join gives the load of a model that is under way, of whatever digest, or begins one. failed is why this request may not wait; both are nil where
// nobody can load the model after all. landed is how many loads had ended when the request was refused.
func (r *Residency) join(of key, id string, landed uint64) (f *flight, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f = r.flights[of.model]; f == nil {
		if err := r.failures.Recent(of, time.Now()); err != nil {
			return nil, err
		}
		if r.landed.Load() != landed {
			return nil, errOld
		}
		load, err := r.start(of.model, of.digest, id)
		switch {
		case rpc.Reason(err) == reason.TooManyLoads:
			return nil, err
		case err != nil:
			return nil, nil // the placer's refusal says what is wrong
		}
		f = &flight{key: of, id: id, over: make(chan struct{})}
		r.flights[of.model] = f
		r.logger.Info("loading a model on demand", "model", of.model, "request_id", id)
		r.wait.Go(func() { r.follow(f, load) })
	}
	if r.cfg.MaxWaiting > 0 && f.waiting >= r.cfg.MaxWaiting {
		return nil, fault.TooManyAwaitLoad(of.model, r.cfg.MaxWaiting)
	}
	f.waiting++
	return f, nil
}

// leave takes a request off those that wait. The load goes on without any.
func (r *Residency) leave(f *flight) {
	r.mu.Lock()
	f.waiting--
	r.mu.Unlock()
}

// follow reads a load to its end and tells those that wait.
func (r *Residency) follow(f *flight, load Load) {
	begin := time.Now()
	for event := range load.Events() {
		f.last.Store(event)
	}
	f.err = load.Err()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flights, f.key.model)
	r.landed.Add(1)
	if f.err == nil {
		delete(r.failures, f.key)
		r.logger.Info("model loaded on demand", "model", f.key.model, "worker", f.last.Load().GetWorkerId(), "waiting", f.waiting,
			"request_id", f.id, "took", time.Since(begin).Round(time.Millisecond))
	} else { // logged by the loader
		f.err = r.failures.Add(f.key, fault.OfLoad(f.err), time.Now())
	}
	close(f.over)
}
