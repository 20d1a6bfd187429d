package admission

import "time"

// Stats is what one model's queue holds and has done since the process began.
type Stats struct {
	Model string
	// Waiting are requests in the queue, Resuming those that resume; Oldest is the longest that one of them waits.
	Waiting, Resuming int
	Oldest            time.Duration
	// Placed were given a place, of which Queued had waited, together WaitTotal and none longer than WaitMax.
	Placed, Queued     uint64
	WaitTotal, WaitMax time.Duration
	// Shed were refused because the queue was full, Displaced lost their place in it, Late would have missed their deadline, Expired had
	// waited for as long as one may; Left are those whose callers gave up waiting.
	Shed, Displaced, Late, Expired, Left uint64
}

// counts is what a queue has done.
type counts struct {
	queued, shed, displaced, late, expired, left uint64
	waitTotal, waitMax                           time.Duration
}

func (c *counts) waited(d time.Duration) {
	c.queued++
	c.waitTotal += d
	c.waitMax = max(c.waitMax, d)
}

// read is the state of the queue.
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
