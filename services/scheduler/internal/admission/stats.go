package admission

import (
	"slices"
	"strings"
	"time"
)

// Stats are the state and the counters of one model's queue.
type Stats struct {
	Model string
	// Waiting requests are in the queue, and Resuming streams. Oldest is the longest wait among them.
	Waiting, Resuming int
	Oldest            time.Duration
	// Placed requests were granted a slot. Of them, Queued had waited, WaitTotal together and
	// WaitMax at most.
	Placed, Queued     uint64
	WaitTotal, WaitMax time.Duration
	// Shed requests were refused because the queue was full, Displaced ones were displaced in it, Late
	// ones would have missed their deadline, Expired ones waited for the longest time allowed, and the
	// callers of Left ones were gone.
	Shed, Displaced, Late, Expired, Left uint64
}

// counts are the counters of a queue.
type counts struct {
	queued, shed, displaced, late, expired, left uint64
	waitTotal, waitMax                           time.Duration
}

func (c *counts) waited(d time.Duration) {
	c.queued++
	c.waitTotal += d
	c.waitMax = max(c.waitMax, d)
}

// Stats returns those of every model that workers have served, by name.
func (a *Admission) Stats() (all []Stats) {
	now := time.Now()
	a.queues.Range(func(_, q any) bool {
		all = append(all, q.(*modelQueue).stats(now))
		return true
	})
	slices.SortFunc(all, func(a, b Stats) int { return strings.Compare(a.Model, b.Model) })
	return all
}

// stats returns the state and counters of a model's queue.
func (q *modelQueue) stats(now time.Time) Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.mu.queue.read(now)
	s.Model, s.Placed = q.model, q.placed.Load()
	return s
}

// read returns the state and counters of a queue.
func (q *queue) read(now time.Time) Stats {
	s := Stats{
		Waiting: q.order.Len(), Resuming: len(q.resuming), Queued: q.stats.queued, WaitTotal: q.stats.waitTotal,
		WaitMax: q.stats.waitMax, Shed: q.stats.shed, Displaced: q.stats.displaced, Late: q.stats.late, Expired: q.stats.expired,
		Left: q.stats.left,
	}
	if oldest, found := q.order.Oldest(); found {
		s.Oldest = now.Sub(oldest.since)
	}
	if len(q.resuming) > 0 {
		s.Oldest = max(s.Oldest, now.Sub(q.resuming[0].since))
	}
	return s
}
