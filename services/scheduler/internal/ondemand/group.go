package ondemand

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Sentinels of Join and Wait.
var (
	// ErrStale: a load has ended since the request was refused, and may have helped: place it again.
	ErrStale = errors.New("the refusal is older than the end of a load")
	// ErrCrowded: as many requests wait for the load as may.
	ErrCrowded = errors.New("too many requests wait for the load")
	// ErrTimeout: the load has not ended in the time given. It continues.
	ErrTimeout = errors.New("the load has not ended in time")
)

// Key identifies the thing to load.
type Key interface {
	comparable
	// Flight names the load that requests for the key join: keys that have it in common wait for
	// each other's loads.
	Flight() string
}

// Load is a load that has been started.
type Load interface {
	// Wait returns when the load has ended. The error is a status.
	Wait() error
}

// Group has the loads of keys K that are under way, and the failures of past ones. Safe for
// concurrent use. The fields are set before its first use; the zero value bounds and reports nothing.
type Group[K Key, L Load] struct {
	// MaxWaiting bounds the requests that wait for one load; 0 means unbounded.
	MaxWaiting int
	// Ended, if not nil, is called at the end of each load, before the requests that wait for it
	// continue. It must not use the Group.
	Ended func(f *Flight[K, L], waiting int, took time.Duration, err error)

	wait     sync.WaitGroup
	ended    atomic.Uint64 // loads that have ended; written under mu
	mu       sync.Mutex
	flights  map[string]*Flight[K, L] // guarded by mu; loads under way
	failures failures[K]              // guarded by mu
}

// Flight is one load under way.
type Flight[K Key, L Load] struct {
	Key  K
	Load L

	group   *Group[K, L]
	waiting int           // guarded by group.mu
	over    chan struct{} // closed at the end
	err     error         // a status; set before over is closed
}

// Generation returns how many loads have ended. A request reads it before it is placed, and passes it
// to Join if it is refused.
func (g *Group[K, L]) Generation() uint64 { return g.ended.Load() }

// Close waits until the loads under way have ended.
func (g *Group[K, L]) Close() { g.wait.Wait() }

// Join adds a request to the load under way for its key, or starts one. start must not block; its
// error is returned as it is. Otherwise the error is a remembered failure as a status, ErrStale if
// the generation has changed since the request was refused, or ErrCrowded. The caller must call Wait.
func (g *Group[K, L]) Join(key K, generation uint64, start func() (L, error)) (*Flight[K, L], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.flights[key.Flight()]
	if f == nil {
		if err := g.failures.recent(key, time.Now()); err != nil {
			return nil, err
		}
		if g.ended.Load() != generation {
			return nil, ErrStale
		}
		load, err := start()
		if err != nil {
			return nil, err
		}
		f = &Flight[K, L]{Key: key, Load: load, group: g, over: make(chan struct{})}
		if g.flights == nil {
			g.flights, g.failures = map[string]*Flight[K, L]{}, failures[K]{}
		}
		g.flights[key.Flight()] = f
		g.wait.Go(func() { g.follow(f) })
	}
	if g.MaxWaiting > 0 && f.waiting >= g.MaxWaiting {
		return nil, ErrCrowded
	}
	f.waiting++
	return f, nil
}

// follow waits for the end of a load and wakes the requests that wait for it.
func (g *Group[K, L]) follow(f *Flight[K, L]) {
	begin := time.Now()
	err := f.Load.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flights, f.Key.Flight())
	g.ended.Add(1)
	if g.Ended != nil {
		g.Ended(f, f.waiting, time.Since(begin), err)
	}
	if err == nil {
		delete(g.failures, f.Key)
	} else {
		f.err = g.failures.add(f.Key, rpcstatus.OfLoad(err), time.Now())
	}
	close(f.over)
}

// Wait waits for the end of the load and returns its error: a status. It returns ErrTimeout at until,
// and ctx's cause if ctx ends; the load continues then. Call it once for each Join.
func (f *Flight[K, L]) Wait(ctx context.Context, until <-chan time.Time) error {
	defer func() {
		f.group.mu.Lock()
		f.waiting--
		f.group.mu.Unlock()
	}()
	select {
	case <-f.over:
		return f.err
	case <-until:
		return ErrTimeout
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
