package server

import (
	"context"
	"sync"
	"time"
)

// bound ends the generations that run when a drain's time is over. Safe for concurrent use; the zero value has none.
type bound struct {
	mu      sync.Mutex
	timer   *time.Timer                           // guarded by mu; nil: no bound
	reached bool                                  // guarded by mu; timer has fired and was not cleared
	runs    map[*context.CancelCauseFunc]struct{} // guarded by mu
}

// join returns a context that ends with errDrained when a bound is reached, until leave. If one was reached already, it has ended: a
// call may pass admit before a drain begins and join after the drain's bound.
func (b *bound) join(ctx context.Context) (joined context.Context, leave func()) {
	joined, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.runs == nil {
		b.runs = map[*context.CancelCauseFunc]struct{}{}
	}
	b.runs[&cancel] = struct{}{}
	if b.reached {
		cancel(errDrained)
	}
	return joined, func() {
		b.mu.Lock()
		delete(b.runs, &cancel)
		b.mu.Unlock()
		cancel(nil)
	}
}

// set has what runs then ended after a time.
func (b *bound) set(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.timer != timer { // it was cleared meanwhile
			return
		}
		b.reached = true
		for cancel := range b.runs {
			(*cancel)(errDrained)
		}
	})
	b.timer = timer
}

// clear removes the bound. Calls that it ended stay ended; calls that join from now on run.
func (b *bound) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reached = false
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}
