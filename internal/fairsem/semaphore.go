package fairsem

import (
	"context"
	"sync"

	"github.com/millrace/millrace/internal/fairqueue"
)

// Config sets how much runs at once.
type Config struct {
	Small      int // slots for work below LargeFrom; at least 1
	Large      int // slots for larger work; at least 1
	LargeFrom  int // bytes from which work is large
	LargeBytes int // bytes of large work that run together; larger work runs alone
}

// Semaphore admits work by size and tenant. New makes it. It is safe for concurrent use.
type Semaphore struct {
	largeFrom int

	mu struct {
		sync.Mutex
		small, large lane
	}
}

// lane holds the slots of one kind of work and their queue.
type lane struct {
	slots, bytes         int // limits; bytes 0: no limit
	usedSlots, usedBytes int
	arrivals             uint64
	queue                fairqueue.Queue[*waiter]
}

// waiter is one call of Acquire.
type waiter struct {
	tenant string
	size   int
	ready  chan struct{} // closed when it is admitted
}

// New returns a semaphore with all slots free.
func New(cfg Config) *Semaphore {
	s := &Semaphore{largeFrom: cfg.LargeFrom}
	s.mu.small = lane{slots: max(cfg.Small, 1)}
	s.mu.large = lane{slots: max(cfg.Large, 1), bytes: cfg.LargeBytes}
	return s
}

// Acquire waits for a slot for work of size bytes. The caller must call release once. If ctx ends
// first, Acquire returns its cause, and there is nothing to release.
func (s *Semaphore) Acquire(ctx context.Context, tenant string, size int) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := &waiter{tenant: tenant, size: size, ready: make(chan struct{})}
	s.mu.Lock()
	l := &s.mu.small
	if size >= s.largeFrom {
		l = &s.mu.large
	}
	l.arrivals++
	l.queue.Push(w, w.class(), l.arrivals)
	l.admitLocked()
	s.mu.Unlock()
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.usedSlots--
		l.usedBytes -= w.size
		l.admitLocked()
	}
	select {
	case <-w.ready:
		return release, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	waits := l.queue.Remove(w)
	if waits {
		l.admitLocked() // the next waiter may be smaller
	}
	s.mu.Unlock()
	if !waits { // it was admitted before the lock
		release()
	}
	return nil, context.Cause(ctx)
}

// Waiting returns the number of calls of Acquire that wait.
func (s *Semaphore) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.small.queue.Len() + s.mu.large.queue.Len()
}

// admitLocked admits waiters while there are free slots. It never passes over the first waiter in
// order, so that work of any size is admitted at last.
func (l *lane) admitLocked() {
	for l.usedSlots < l.slots {
		w, found := l.queue.Next(nil)
		if !found || l.bytes > 0 && l.usedSlots > 0 && l.usedBytes+w.size > l.bytes {
			return
		}
		l.queue.Remove(w)
		l.queue.Charge(w.class(), max(w.size, 1))
		l.usedSlots++
		l.usedBytes += w.size
		close(w.ready)
	}
}

func (w *waiter) class() fairqueue.Flow { return fairqueue.Flow{Tenant: w.tenant} }
