package route

import (
	"sync"
	"sync/atomic"
)

// Load counts what this process has under way on one worker. Safe for concurrent use; the zero value is idle.
type Load struct {
	// Vectors is what is under way of vector codebooks, which nothing else here counts.
	Vectors VectorLoad

	inFlight atomic.Int64
	tokens   atomic.Int64

	mu     sync.Mutex
	models map[string]*ModelLoad // guarded by mu
}

// Begin counts a request that may need as many tokens, unless most are under way; most 0 is no bound.
func (l *Load) Begin(tokens, most int64) bool {
	for {
		now := l.inFlight.Load()
		if most > 0 && now >= most {
			return false
		}
		if l.inFlight.CompareAndSwap(now, now+1) {
			l.tokens.Add(tokens)
			return true
		}
	}
}

// Progress takes computed tokens off.
func (l *Load) Progress(tokens int64) { l.tokens.Add(-tokens) }

// End takes a request off, with what is left of its tokens.
func (l *Load) End(tokens int64) {
	l.tokens.Add(-tokens)
	l.inFlight.Add(-1)
}

// InFlight is the number of requests under way.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Idle is whether nothing is under way.
func (l *Load) Idle() bool { return l.InFlight() == 0 && l.Vectors.idle() }

// Tokens is the number of tokens these may still need: prompts not started plus tokens not generated.
func (l *Load) Tokens() int64 { return l.tokens.Load() }

// Of is what is under way of one model there; never nil.
func (l *Load) Of(model string) *ModelLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.models[model]
	if of == nil {
		if l.models == nil {
			l.models = map[string]*ModelLoad{}
		}
		of = &ModelLoad{}
		l.models[model] = of
	}
	return of
}
