package sim

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/gpuworker/engine"
)

// refusals are the injected memory faults of a device.
type refusals struct {
	failed atomic.Uint64 // frees that were refused
	mu     struct {
		sync.Mutex
		plans map[engine.Refusal]plan
	}
}

// plan lets skip calls succeed and the following count fail.
type plan struct {
	skip  int
	count uint64
}

func (r *refusals) ask(what engine.Refusal, skip int, count uint64) error {
	if what != engine.RefuseAlloc && what != engine.RefuseFree {
		return fmt.Errorf("refusal %d: want %d or %d: %w", what, engine.RefuseAlloc, engine.RefuseFree, engine.ErrInvalid)
	}
	if skip < 0 {
		return fmt.Errorf("refusal after %d blocks: %w", skip, engine.ErrInvalid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.plans == nil {
		r.mu.plans = map[engine.Refusal]plan{}
	}
	r.mu.plans[what] = plan{skip: skip, count: count}
	return nil
}

// take reports whether this call is refused, and counts it.
func (r *refusals) take(what engine.Refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.mu.plans[what]
	switch {
	case !ok || p.count == 0:
		return false
	case p.skip > 0:
		p.skip--
		r.mu.plans[what] = p
		return false
	}
	p.count--
	r.mu.plans[what] = p
	return true
}
