package load

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Generator makes calls over a set of connections, used in turn.
type Generator struct {
	Conns   []grpc.ClientConnInterface
	Maker   Maker
	Timeout time.Duration // of a call; 0: none
	To      *Recorder
	next    atomic.Uint64 // index of the next request
}

// Closed keeps concurrency calls of one size running until the duration has passed (0: for ever) or count calls were
// started (0: any number), and waits for those that run. Each caller makes one call at least, however late it begins. When ctx ends
// the running calls are cut off.
func (g *Generator) Closed(ctx context.Context, concurrency int, size Size, duration time.Duration, count uint64) {
	end := time.Now().Add(duration)
	var started atomic.Uint64
	var work sync.WaitGroup
	for range concurrency {
		work.Go(func() {
			var gaps []Gap
			for n := 0; ctx.Err() == nil && (n == 0 || duration == 0 || time.Now().Before(end)) && (count == 0 || started.Add(1) <= count); n++ {
				out := g.call(ctx, g.next.Add(1)-1, size, time.Now(), gaps[:0])
				gaps = out.Gaps
			}
		})
	}
	work.Wait()
}

// Open starts a call for each arrival when it is due, and waits for all. When ctx ends no more are started and the
// running ones are cut off.
func (g *Generator) Open(ctx context.Context, arrivals iter.Seq[Arrival]) {
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var work sync.WaitGroup
	defer work.Wait()
	for a := range arrivals {
		due := begin.Add(a.At)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		index := g.next.Add(1) - 1
		work.Go(func() { g.call(ctx, index, a.Size, due, nil) })
	}
}

// One makes the next call, of one size, and waits for its end.
func (g *Generator) One(ctx context.Context, size Size) Outcome {
	return g.call(ctx, g.next.Add(1)-1, size, time.Now(), nil)
}

// call makes one call and records it. The outcome's gaps may be used again.
func (g *Generator) call(ctx context.Context, index uint64, size Size, due time.Time, gaps []Gap) Outcome {
	conn := g.Conns[index%uint64(len(g.Conns))]
	g.To.begin()
	out := Call(ctx, conn, g.Maker.Request(index, size), due, g.Timeout, g.To.observer(), gaps)
	out.Index = index
	g.To.end(&out)
	return out
}
