package rig

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// load is a closed loop of clients, which ask in turn for the stories whose answers are known.
type load struct {
	board board
	stop  chan struct{} // closed when no new request is made
	all   sync.WaitGroup

	mu    sync.Mutex
	tally tally // guarded by mu
}

// afterFailure keeps clients that are refused from asking in a busy loop.
const afterFailure = 200 * time.Millisecond

// begin starts one client for each story, over the schedulers in turn. End it.
func (r *rig) begin(ctx context.Context, moves bool) *load {
	l := &load{stop: make(chan struct{}), tally: tally{moved: map[string]int{}}}
	for i := range r.stories {
		l.all.Go(func() {
			c := &client{entries: r.entries, home: i % len(r.entries), moves: moves, board: &l.board}
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				case <-ctx.Done():
					return
				default:
				}
				s := &r.stories[n%len(r.stories)]
				a, err := c.ask(ctx, s.request)
				if ctx.Err() != nil {
					return
				}
				if l.count(s, &a, err); err != nil && !sleep(ctx, afterFailure) {
					return
				}
				c.home = i % len(r.entries)
			}
		})
	}
	return l
}

// count adds one stream.
func (l *load) count(s *story, a *asked, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.tally
	t.streams++
	t.longest = max(t.longest, a.longest)
	for _, name := range a.left {
		t.moved[name]++
	}
	if a.resumed != nil {
		t.resumed++
		if t.why == nil {
			t.why = a.resumed
		}
	}
	if err != nil {
		t.failed = append(t.failed, fmt.Sprintf("seed %d %v", s.request.GetSampling().GetSeed(), err))
	} else if how := a.differs(&s.want); how != "" {
		t.different = append(t.different, fmt.Sprintf("seed %d on %s: %s", s.request.GetSampling().GetSeed(), a.started.GetWorkerId(), how))
	}
}

// end lets every stream come to its end.
func (l *load) end() *tally {
	close(l.stop)
	l.all.Wait()
	return &l.tally
}

// running waits until so many streams run and so many workers have had one.
func (l *load) running(ctx context.Context, workers, streams int) error {
	for until := time.Now().Add(busyTimeout); time.Now().Before(until); {
		open, had := l.board.spread()
		if had >= workers && open >= streams {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	open, had := l.board.spread()
	return fmt.Errorf("%d streams run, and %d workers had any: want %d on %d workers before anything is broken", open, had, streams, workers)
}

// busyTimeout bounds the wait for a load to spread, and for streams to begin.
const busyTimeout = 2 * time.Minute
