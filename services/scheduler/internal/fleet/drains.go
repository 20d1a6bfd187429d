package fleet

import "sync"

// drains tells those who listen each time that a worker begins to drain. Safe for concurrent use; the zero value is of a worker that
// does not.
type drains struct {
	mu    sync.Mutex
	is    bool                 // guarded by mu
	hears map[*func()]struct{} // guarded by mu
}

// listen has f called, on a goroutine of its own, each time that the worker begins to drain, and now if it does, until stop.
func (d *drains) listen(f func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hears == nil {
		d.hears = map[*func()]struct{}{}
	}
	d.hears[&f] = struct{}{}
	if d.is {
		go f()
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.hears, &f)
	}
}

// set notes what the worker says of itself.
func (d *drains) set(is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is && !d.is {
		for f := range d.hears {
			go (*f)()
		}
	}
	d.is = is
}

// OnDrain has f called, on a goroutine of its own, each time that the worker says that it begins to drain, and now if it does: its
// requests should go elsewhere where they can. stop ends that; a call under way goes on.
func (l *Link) OnDrain(f func()) (stop func()) { return l.drains.listen(f) }
