package fleet

import (
	"context"
	"sync"
)

// drains tells whoever waits that a worker drains, for each time that it does. Safe for concurrent use; the zero value is of a
// worker that does not.
type drains struct {
	mu   sync.Mutex
	is   bool            // guarded by mu
	next context.Context // guarded by mu; ends when is becomes true, nil until asked for
	end  context.CancelFunc
}

// wait is a context that ends when the worker drains: at once if it does.
func (d *drains) wait() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == nil {
		d.next, d.end = context.WithCancel(context.Background())
		if d.is {
			d.end()
		}
	}
	return d.next
}

// set notes what the worker says of itself.
func (d *drains) set(is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case is == d.is:
		return
	case is && d.next != nil:
		d.end()
	case !is:
		d.next = nil // who waits from now on waits for the next time
	}
	d.is = is
}

// Drains ends when the worker says that it drains: its requests should go elsewhere where they can. It is another one after the
// worker has taken that back.
func (l *Link) Drains() context.Context { return l.drains.wait() }
