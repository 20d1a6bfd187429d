package fleet

import (
	"context"
	"sync/atomic"
)

// draining is a context that ends when a worker begins to drain, and another one once it serves again. One goroutine sets it,
// any reads it.
type draining struct {
	now atomic.Pointer[drain]
}

// drain is the wait for one drain.
type drain struct {
	context.Context
	begin context.CancelFunc
}

func newDraining() *draining {
	d := &draining{}
	d.renew()
	return d
}

func (d *draining) renew() {
	ctx, begin := context.WithCancel(context.Background())
	d.now.Store(&drain{ctx, begin})
}

// set tells whether the worker drains.
func (d *draining) set(drains bool) {
	now := d.now.Load()
	switch ended := now.Err() != nil; {
	case drains && !ended:
		now.begin()
	case !drains && ended:
		d.renew()
	}
}
