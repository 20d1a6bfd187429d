package chaos

import (
	"context"
	"sync"
	"time"
)

// loop keeps so many streams open until more is closed, and then waits for their ends; after the grace they are cut off and
// have failed. Stream i makes request i modulo requests and is sent to scheduler i modulo their number. With a limit above 0 no more
// streams than that are begun.
type loop struct {
	client   *client
	streams  int
	requests int
	limit    int
	grace    time.Duration
}

func (l *loop) run(ctx context.Context, more <-chan struct{}) []*record {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var all []*record
	var wg sync.WaitGroup
	next := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-more:
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
				r := l.client.run(ctx, i%l.requests, i%len(l.client.conns))
				mu.Lock()
				all[i] = r
				mu.Unlock()
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
	case <-more:
	}
	select {
	case <-done:
	case <-time.After(l.grace):
		cancel()
		<-done
	}
	return all
}
