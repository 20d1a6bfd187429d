package rig

import "sync"

// board knows which streams are open on which worker, as their beginnings said. It is for several goroutines; the zero value
// is empty.
type board struct {
	mu     sync.Mutex
	open   map[*answer]string // guarded by mu; to the worker's id
	failed map[*answer]bool   // guarded by mu
	sum    map[string]int     // guarded by mu; streams ever begun, by worker's id
}

// enter notes that a stream has begun on a worker.
func (b *board) enter(a *answer, worker string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open, b.failed, b.sum = map[*answer]string{}, map[*answer]bool{}, map[string]int{}
	}
	b.open[a] = worker
	b.sum[worker]++
}

// leave notes that a stream has ended, well or not.
func (b *board) leave(a *answer, well bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, begun := b.open[a]; begun && !well {
		b.failed[a] = true
	}
	delete(b.open, a)
}

// on are the streams that are open on a worker.
func (b *board) on(worker string) map[*answer]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[*answer]bool{}
	for a, w := range b.open {
		if w == worker {
			all[a] = true
		}
	}
	return all
}

// cut are how many of some streams have not ended well: they failed, or are open.
func (b *board) cut(of map[*answer]bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for a := range of {
		if _, open := b.open[a]; open || b.failed[a] {
			n++
		}
	}
	return n
}

// busiest is the worker with the most open streams, of two the one of the lesser id, and how many it has.
func (b *board) busiest() (worker string, streams int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := map[string]int{}
	for _, w := range b.open {
		on[w]++
	}
	for w, n := range on {
		if n > streams || n == streams && w < worker {
			worker, streams = w, n
		}
	}
	return worker, streams
}

// begun is how many streams have ever begun on a worker.
func (b *board) begun(worker string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sum[worker]
}

// workers is how many workers have had a stream.
func (b *board) workers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sum)
}

// size is how many streams are open.
func (b *board) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}
