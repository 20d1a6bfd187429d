package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// silenceTicks is how many ticks in a row must pass without a message. One long tick would also count the time in which
// this very process got no processor, while messages lay in its sockets; after each tick they get their turn.
const silenceTicks = 7

// silence calls a function once when nothing was heard for a while.
type silence struct {
	tick   time.Duration
	heard  *atomic.Bool // set by whoever hears something, cleared by ticks
	silent func()

	mu    sync.Mutex
	timer *time.Timer
	count int  // guarded by mu
	over  bool // guarded by mu; fired or stopped
}

// watchSilence begins to count; silent is called on another goroutine, once, after d in which heard was not set, and at
// most a tick more.
func watchSilence(d time.Duration, heard *atomic.Bool, silent func()) *silence {
	s := &silence{tick: d / silenceTicks, heard: heard, silent: silent}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.tick, s.ticked)
	return s
}

// stop ends it; silent is not called any more, unless it already runs.
func (s *silence) stop() {
	s.mu.Lock()
	s.over = true
	s.timer.Stop()
	s.mu.Unlock()
}

func (s *silence) ticked() {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	if s.heard.Swap(false) {
		s.count = 0
	}
	s.count++
	// The first tick after a message is not a whole one.
	if s.count > silenceTicks {
		s.over = true
		s.mu.Unlock()
		s.silent()
		return
	}
	s.timer.Reset(s.tick)
	s.mu.Unlock()
}
