package route

import (
	"sync"
	"sync/atomic"
)

// Load counts what this process has on one worker. It is safe for concurrent use. The zero value is
// idle.
type Load struct {
	inFlight atomic.Int64
	tokens   atomic.Int64

	mu struct {
		sync.Mutex
		models map[string]*ModelLoad
	}
}

// Begin counts a request that may need a number of tokens. It returns false, and counts nothing, if
// most requests are in flight; most 0: no bound.
func (l *Load) Begin(tokens, most int64) bool {
	for {
		n := l.inFlight.Load()
		if most > 0 && n >= most {
			return false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			l.tokens.Add(tokens)
			return true
		}
	}
}

// Progress subtracts computed tokens.
func (l *Load) Progress(tokens int64) { l.tokens.Add(-tokens) }

// End removes a request and its remaining tokens.
func (l *Load) End(tokens int64) {
	l.tokens.Add(-tokens)
	l.inFlight.Add(-1)
}

// InFlight returns the number of requests in flight.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Idle reports whether no request is in flight.
func (l *Load) Idle() bool { return l.InFlight() == 0 }

// Tokens returns the tokens that the requests may still need: prompts that have not started, and
// tokens that are not generated.
func (l *Load) Tokens() int64 { return l.tokens.Load() }

// Of returns the load of one model; never nil.
func (l *Load) Of(model string) *ModelLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.models[model]
	if m == nil {
		if l.mu.models == nil {
			l.mu.models = map[string]*ModelLoad{}
		}
		m = &ModelLoad{}
		l.mu.models[model] = m
	}
	return m
}
