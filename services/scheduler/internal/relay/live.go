package relay

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// Generation is the state of a Generate call that is being served.
type Generation struct {
	ID, Model string
	// Worker is the id of the worker that serves it; empty while the call waits for one.
	Worker string
	// Tokens is how many tokens workers have sent.
	Tokens  int64
	Arrived time.Time
}

// Generations returns at most most of the generations that are being served, the oldest first, and
// the number of all.
func (r *Relay) Generations(most int) (oldest []Generation, all int) { return r.live.list(most) }

// liveCalls are the generations that are being served.
type liveCalls struct {
	mu struct {
		sync.Mutex
		calls list.List // of *liveCall, in order of arrival
	}
}

// liveCall is the part of a call that other goroutines read while its own serves it.
type liveCall struct {
	id, model string
	arrived   time.Time
	worker    atomic.Pointer[string] // nil while the call waits for one
	tokens    atomic.Int64
}

// add lists a call until remove is called.
func (l *liveCalls) add(c *liveCall) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	element := l.mu.calls.PushBack(c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.calls.Remove(element)
	}
}

func (l *liveCalls) list(most int) (oldest []Generation, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.mu.calls.Front(); e != nil && len(oldest) < most; e = e.Next() {
		c := e.Value.(*liveCall)
		g := Generation{ID: c.id, Model: c.model, Arrived: c.arrived, Tokens: c.tokens.Load()}
		if worker := c.worker.Load(); worker != nil {
			g.Worker = *worker
		}
		oldest = append(oldest, g)
	}
	return oldest, l.mu.calls.Len()
}
