package faults

import (
	"context"
	"sync"
	"time"
)

// afterFailure keeps a client whose stream was refused from retrying in a busy loop.
const afterFailure = 200 * time.Millisecond

// loop keeps a number of streams open. Stream i makes request i modulo requests and is first sent
// to scheduler i modulo their number.
type loop struct {
	client   *client
	streams  int // at once
	requests int
	limit    int           // streams in all; 0: no limit
	grace    time.Duration // after stop is closed, streams have this long to end; then they have failed
}

// run begins streams until stop is closed or the limit is reached, and returns the records of all.
func (l *loop) run(ctx context.Context, stop <-chan struct{}) []*record {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var all []*record
	var wg sync.WaitGroup
	next := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-stop:
			return 0, false
		case <-ctx.Done():
			return 0, false
		default:
		}
		if l.limit > 0 && len(all) == l.limit {
			return 0, false
		}
		all = append(all, nil)
		return len(all) - 1, true
	}
	for range l.streams {
		wg.Go(func() {
			for {
				i, ok := next()
				if !ok {
					return
				}
				r := l.client.run(ctx, i%l.requests, i%len(l.client.schedulers))
				mu.Lock()
				all[i] = r
				mu.Unlock()
				if r.err != nil {
					sleep(ctx, afterFailure)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	select {
	case <-done:
		return all
	case <-stop:
	}
	select {
	case <-done:
	case <-time.After(l.grace):
		cancel()
		<-done
	}
	return all
}

// live is the streams that are open, by the worker that each began on. The zero value is empty; it
// is safe for concurrent use.
type live struct {
	mu    sync.Mutex
	open  map[*record]position // guarded by mu
	begun map[string]int       // guarded by mu; streams that ever began, by worker
}

// position is how far an open stream has come.
type position struct {
	worker string
	tokens int
}

// update stores the position of a stream; it is called by the stream's own goroutine.
func (l *live) update(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open, l.begun = map[*record]position{}, map[string]int{}
	}
	if l.open[r].worker != r.worker {
		l.begun[r.worker]++
	}
	l.open[r] = position{r.worker, r.transcript.length()}
}

// end removes a stream.
func (l *live) end(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, r)
}

// busy counts the open streams of each worker that have at least one token and at most atMost.
func (l *live) busy(atMost int) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := map[string]int{}
	for _, p := range l.open {
		if p.tokens > 0 && p.tokens <= atMost {
			busy[p.worker]++
		}
	}
	return busy
}

// beganOn returns how many streams ever began on a worker.
func (l *live) beganOn(worker string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun[worker]
}

// spread returns how many streams are open, and on how many workers a stream ever began.
func (l *live) spread() (streams, workers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open), len(l.begun)
}
