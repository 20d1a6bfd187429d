package load

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Generator makes calls over a set of connections, which it uses in turn.
type Generator struct {
	Conns   []grpc.ClientConnInterface
	Maker   Maker
	Timeout time.Duration // of a call; 0: none
	To      *Recorder
	next    atomic.Uint64 // index of the next request
}

// Closed keeps concurrency calls of one size running until the duration has passed (0: without
// end) or count calls were started (0: any number), and waits for the running ones. Each caller
// makes at least one call. When ctx ends, the running calls are cancelled.
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

// Open starts a call for each arrival when it is due, and waits for all. When ctx ends, it starts
// no more calls, and the running ones are cancelled.
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

// One makes the next call and waits for its end.
func (g *Generator) One(ctx context.Context, size Size) Outcome {
	return g.call(ctx, g.next.Add(1)-1, size, time.Now(), nil)
}

// call makes one call and records it. The caller may reuse the gaps of the outcome.
func (g *Generator) call(ctx context.Context, index uint64, size Size, due time.Time, gaps []Gap) Outcome {
	conn := g.Conns[index%uint64(len(g.Conns))]
	g.To.begin()
	out := Call(ctx, conn, g.Maker.Request(index, size), due, g.Timeout, g.To.observer(), gaps)
	out.Index = index
	g.To.end(&out)
	return out
}

// Arrival is a request of an open loop.
type Arrival struct {
	At   time.Duration // since the beginning
	Size Size
}

// Poisson returns arrivals of one size with exponential gaps, at a mean rate a second, until the
// duration has passed (0: without end) or count arrivals were returned (0: any number). The same
// seed gives the same times.
func Poisson(rate float64, size Size, seed uint64, duration time.Duration, count int) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
		elapsed := 0.0 // seconds
		for n := 0; count == 0 || n < count; n++ {
			elapsed += r.ExpFloat64() / rate
			when := time.Duration(elapsed * 1e9)
			if duration > 0 && when >= duration || !yield(Arrival{At: when, Size: size}) {
				return
			}
		}
	}
}

// Periodic returns arrivals of one size without end, the first after one period.
func Periodic(every time.Duration, size Size) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		for next := every; yield(Arrival{At: next, Size: size}); next += every {
		}
	}
}

// Fit cuts a size down to limit tokens (0: no limit). The output keeps at least one token and up
// to half of the limit; the prompt gets the rest.
func Fit(s Size, limit int) Size {
	if limit <= 0 || s.Prompt+s.Output <= limit {
		return s
	}
	s.Output = min(s.Output, max(limit/2, limit-s.Prompt))
	s.Prompt = min(s.Prompt, limit-s.Output)
	return s
}
