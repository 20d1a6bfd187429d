package rig

import (
	"maps"
	"sync"
	"time"
)

// board knows which streams run on which worker, as their beginnings said. It is for several goroutines; the zero value is
// empty.
type board struct {
	mu  sync.Mutex
	all map[*answer]course // guarded by mu; every stream ever begun
}

// course is what is known of one stream.
type course struct {
	worker string
	begun  time.Time
	tokens int           // that it has
	ended  time.Time     // zero while it is open
	well   bool          // it ended well
	pause  time.Duration // its longest, once it has ended
}

// enter notes that a stream has begun on a worker.
func (b *board) enter(a *answer, worker string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[*answer]course{}
	}
	c := b.all[a]
	if c.begun.IsZero() {
		c.begun = time.Now()
	}
	c.worker = worker
	b.all[a] = c
}

// leave notes that a stream has ended, well or not, and its longest pause; one that has not begun is of no interest.
func (b *board) leave(a *answer, pause time.Duration, well bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, begun := b.all[a]; begun {
		c.ended, c.pause, c.well = time.Now(), pause, well
		b.all[a] = c
	}
}

// open are the streams that are open on a worker.
func (b *board) open(worker string) map[*answer]course {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := maps.Clone(b.all)
	maps.DeleteFunc(open, func(_ *answer, c course) bool { return c.worker != worker || !c.ended.IsZero() })
	return open
}

// cut is how many of some streams have not ended well by a time: they failed, ended later, or are open.
func (b *board) cut(of map[*answer]course, at time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for a := range of {
		if c := b.all[a]; !c.well || c.ended.After(at) {
			n++
		}
	}
	return n
}

// pause is the longest of some streams, of those that have ended.
func (b *board) pause(of map[*answer]course) (longest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range of {
		longest = max(longest, b.all[a].pause)
	}
	return longest
}

// has notes how many tokens a stream has that has begun.
func (b *board) has(a *answer, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, begun := b.all[a]; begun {
		c.tokens = tokens
		b.all[a] = c
	}
}

// busiest is the worker with the most open streams that have no more than so many tokens, of two the one of the lesser id, and how
// many these are; empty if there is none.
func (b *board) busiest(early int) (worker string, streams int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := map[string]int{}
	for _, c := range b.all {
		if c.ended.IsZero() && c.tokens <= early {
			on[c.worker]++
		}
	}
	for w, n := range on {
		if n > on[worker] || n == on[worker] && w < worker {
			worker = w
		}
	}
	return worker, on[worker]
}

// begun is how many streams have ever begun on a worker.
func (b *board) begun(worker string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, c := range b.all {
		if c.worker == worker {
			n++
		}
	}
	return n
}

// spread is how many streams are open, and how many workers have had one.
func (b *board) spread() (streams, workers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	had := map[string]bool{}
	for _, c := range b.all {
		had[c.worker] = true
		if c.ended.IsZero() {
			streams++
		}
	}
	return streams, len(had)
}
