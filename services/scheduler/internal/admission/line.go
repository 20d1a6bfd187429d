package admission

import (
	"sync"
	"sync/atomic"
	"time"
)

// line is the queue of one model and who may look whether it is empty without waiting for it.
type line struct {
	model    string
	waiting  atomic.Int64 // items in the queue; raised before an item looks for a place, so that no end of a lease is missed
	resuming atomic.Int64 // of them, those that resume
	placed   atomic.Uint64

	mu    sync.Mutex
	queue queue // guarded by mu
	gone  bool  // guarded by mu; nobody finds it any more
}

// ahead is whether a request would pass others if it took a place now.
func (l *line) ahead(i *item) bool {
	if i.request.Resumes {
		return l.resuming.Load() > 0
	}
	return i.request.Sequences > 0 && l.waiting.Load() > 0
}

// countLocked makes the counts right after the queue has changed.
func (l *line) countLocked() {
	l.waiting.Store(int64(l.queue.len()))
	l.resuming.Store(int64(len(l.queue.resuming)))
}

// stats is the state of the line.
func (l *line) stats(now time.Time) Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.queue.read(now)
	s.Model, s.Placed = l.model, l.placed.Load()
	return s
}
