package ratelog

import (
	"sync"
	"time"
)

// LinesPerSecond is the number of lines of one kind that are written in a second.
const LinesPerSecond = 10

// Limiter limits the rate of log lines by kind. The zero value is ready. It is safe for concurrent
// use.
type Limiter struct {
	mu    sync.Mutex
	kinds map[string]*kind // guarded by mu
}

// kind counts the lines of one kind.
type kind struct {
	since      time.Time // start of the current second
	lines      int       // calls of Allow in that second
	suppressed int       // lines refused since the last one that was allowed
}

// Allow reports whether a line of the named kind may be written now. If so, suppressed is the
// number of lines of that kind refused since the last one.
func (l *Limiter) Allow(name string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[name]
	if k == nil {
		k = &kind{}
		if l.kinds == nil {
			l.kinds = map[string]*kind{}
		}
		l.kinds[name] = k
	}
	if now := time.Now(); now.Sub(k.since) >= time.Second {
		k.since, k.lines = now, 0
	}
	if k.lines++; k.lines > LinesPerSecond {
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	k.suppressed = 0
	return suppressed, true
}
