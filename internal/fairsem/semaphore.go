package fairsem

import (
	"context"
	"sync"

	"github.com/millrace/millrace/internal/fairqueue"
)

// Config is how much runs at once.
type Config struct {
	Small      int // slots for work below LargeFrom; at least 1
	Large      int // slots for larger work; at least 1
	LargeFrom  int // bytes from which work is large
	LargeBytes int // bytes of large work that run together; larger work runs alone
}

// Semaphore admits work by size and tenant. Make it with New. Safe for concurrent use.
type Semaphore struct {
	largeFrom int

	mu           sync.Mutex
	small, large lane // guarded by mu
}

// lane is the slots of one kind of work and the queue for them.
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
	ready  chan struct{} // closed when it has its slot
}

// New returns a semaphore without work.
func New(cfg Config) *Semaphore {
	return &Semaphore{
		largeFrom: cfg.LargeFrom, small: lane{slots: max(cfg.Small, 1)}, large: lane{slots: max(cfg.Large, 1), bytes: cfg.LargeBytes},
	}
}

// Acquire waits for a slot for work of size bytes and returns the function that releases it, which the caller calls once. It
// fails with the cause of ctx; then there is nothing to release.
func (s *Semaphore) Acquire(ctx context.Context, tenant string, size int) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := &waiter{tenant: tenant, size: size, ready: make(chan struct{})}
	l := &s.small
	if size >= s.largeFrom {
		l = &s.large
	}
	s.mu.Lock()
	l.arrivals++
	l.queue.Push(w, w.class(), l.arrivals)
	l.admit()
	s.mu.Unlock()
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.usedSlots--
		l.usedBytes -= w.size
		l.admit()
	}
	select {
	case <-w.ready:
		return release, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	waits := l.queue.Remove(w)
	if waits {
		l.admit() // the next waiter may be smaller
	}
	s.mu.Unlock()
	if !waits { // it was admitted meanwhile
		release()
	}
	return nil, context.Cause(ctx)
}

// Waiting is how many calls of Acquire wait.
func (s *Semaphore) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.small.queue.Len() + s.large.queue.Len()
}

// admit gives slots to waiters while there are any. The first waiter in order is never passed over, so that work of any size is
// admitted in the end. The caller holds mu.
func (l *lane) admit() {
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

func (w *waiter) class() fairqueue.Class { return fairqueue.Class{Tenant: w.tenant} }
