package vectors

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/residency"
)

// errOld: a load has ended since the call looked for a worker, which may serve it.
var errOld = errors.New("a load has ended meanwhile")

// flights are the loads that calls wait for, one for each codebook. The zero value has none.
type flights struct {
	landed   atomic.Uint64 // loads that have ended; written under mu
	mu       sync.Mutex
	under    map[target]*flight         // guarded by mu
	failures residency.Failures[target] // guarded by mu
}

// flight is one load.
type flight struct {
	over chan struct{} // closed at the end
	err  error         // a status; set before over is closed
}

// load has a codebook loaded, together with all other calls that want it, and waits for that. One that failed is told until it is
// tried again. landed is how many loads had ended when the call found nobody that serves it; where more have since, none is begun. The
// error is errOld then, else a status.
func (v *Vectors) load(ctx context.Context, t target, id string, landed uint64) error {
	f, err := v.join(t, id, landed)
	if err != nil {
		return err
	}
	timer := time.NewTimer(v.cfg.OnDemand)
	defer timer.Stop()
	select {
	case <-f.over:
		return f.err
	case <-timer.C:
		return fault.StillLoadingCodebook(t.codebook, v.cfg.OnDemand)
	case <-ctx.Done():
		return fault.Status(context.Cause(ctx))
	}
}

// join is the load under way, or a new one.
func (v *Vectors) join(t target, id string, landed uint64) (*flight, error) {
	all := &v.flights
	all.mu.Lock()
	defer all.mu.Unlock()
	if f := all.under[t]; f != nil {
		return f, nil
	}
	if err := all.failures.Recent(t, time.Now()); err != nil {
		return nil, err
	}
	if all.landed.Load() != landed {
		return nil, errOld
	}
	if all.under == nil {
		all.under, all.failures = map[target]*flight{}, residency.Failures[target]{}
	}
	f := &flight{over: make(chan struct{})}
	all.under[t] = f
	v.logger.Info("loading a codebook on demand", "codebook", t.codebook, "request_id", id)
	v.wait.Go(func() {
		_, err := v.loadCopies(rpc.WithRequestID(v.ctx, id), t, 1)
		all.mu.Lock()
		defer all.mu.Unlock()
		delete(all.under, t)
		all.landed.Add(1)
		if err != nil {
			v.logger.Warn("codebook not loaded on demand", "codebook", t.codebook, "request_id", id, "error", err)
			f.err = all.failures.Add(t, fault.OfLoad(err), time.Now())
		} else {
			delete(all.failures, t)
		}
		close(f.over)
	})
	return f, nil
}
