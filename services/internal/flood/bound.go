package flood

import (
	"sync"
	"time"
)

// LinesPerSecond is how many lines of one kind are written in a second.
const LinesPerSecond = 10

// Bound counts lines. Its zero value is ready. Safe for concurrent use.
type Bound struct {
	mu    sync.Mutex
	kinds map[string]*kind // guarded by mu
}

// kind is what was written of one kind.
type kind struct {
	since  time.Time // when the second began
	lines  int       // asked for in it
	untold int       // not written since the last one that was
}

// Tell reports whether a line of a kind may be written now, and if so how many before it were not since the last one that was.
func (b *Bound) Tell(of string) (untold int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.kinds[of]
	if k == nil {
		k = &kind{}
		if b.kinds == nil {
			b.kinds = map[string]*kind{}
		}
		b.kinds[of] = k
	}
	if now := time.Now(); now.Sub(k.since) >= time.Second {
		k.since, k.lines = now, 0
	}
	if k.lines++; k.lines > LinesPerSecond {
		k.untold++
		return 0, false
	}
	untold = k.untold
	k.untold = 0
	return untold, true
}
