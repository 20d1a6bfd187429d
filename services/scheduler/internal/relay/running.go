package relay

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// Generation is a Generate call under way.
type Generation struct {
	ID, Model string
	// Worker has it now; empty while it waits for one.
	Worker string
	// Tokens are those that came from workers.
	Tokens  int64
	Arrived time.Time
}

// Generations are those under way, the longest under way first and no more than most, and how many there are.
func (r *Relay) Generations(most int) (some []Generation, all int) { return r.running.list(most) }

// running are the generations under way.
type running struct {
	mu    sync.Mutex
	calls list.List // guarded by mu; of *shown, in the order of their arrival
}

// shown is what others see of a call while its own goroutine runs it.
type shown struct {
	id, model string
	arrived   time.Time
	worker    atomic.Pointer[string] // nil while it waits for one
	tokens    atomic.Int64
}

// enter shows a call until leave.
func (r *running) enter(s *shown) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.calls.PushBack(s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls.Remove(at)
	}
}

func (r *running) list(most int) (some []Generation, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := r.calls.Front(); at != nil && len(some) < most; at = at.Next() {
		s := at.Value.(*shown)
		g := Generation{ID: s.id, Model: s.model, Arrived: s.arrived, Tokens: s.tokens.Load()}
		if worker := s.worker.Load(); worker != nil {
			g.Worker = *worker
		}
		some = append(some, g)
	}
	return some, r.calls.Len()
}
