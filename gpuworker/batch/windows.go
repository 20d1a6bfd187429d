package batch

import (
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// Layers with a window may keep their keys and values in blocks of their own (Config.Window), the
// window group. A sequence has these blocks for the positions that its next ones see, and for those
// of its steps in flight. So it gets them step by step, unlike the others, and a prefill chunk is
// cut to the free blocks.

// leastWindow is how many blocks of the window group let a sequence alone go on.
func leastWindow(window, size int) int { return (window+size-2)/size + 2 }

// needsWindow moves the window of t to the position where s starts, and returns how many more
// blocks of the window group s needs until it can free some.
func (l *Loop) needsWindow(s *sequence, t *kvcache.Table, start int) int {
	if l.cfg.Window == 0 {
		return 0
	}
	l.cache.Slide(t, start)
	return max(0, l.cache.BlocksFor(l.windowEnd(s, start))-len(t.Window))
}

// windowEnd is up to where s gets blocks of the window group when it starts.
func (l *Loop) windowEnd(s *sequence, start int) int {
	size := l.cfg.Runner.BlockSize
	return min(len(s.tokens), max(start, l.cfg.Window)+size)
}

// startBlocks returns Stats.StartBlocks. Like assignSlot it counts one more block than a sequence
// needs.
func (l *Loop) startBlocks(free, windows int) int {
	if l.cfg.Window == 0 || windows > l.cache.BlocksFor(l.cfg.Window+l.cfg.Runner.BlockSize) {
		return free
	}
	return min(free, max(windows-1, 0))
}

// slide frees the blocks that the next position of s does not see. The ends of prompts stay longer
// in the prefix cache, because the next turn of a conversation starts there, and so do the places
// where prompts were found to part.
func (l *Loop) slide(s *sequence) {
	if l.cfg.Window == 0 {
		return
	}
	size := l.cfg.Runner.BlockSize
	l.cache.Slide(s.table, s.computed, (s.promptLength-1)/size*size, min(s.promptLength, s.shared())/size*size, s.left)
}

// windowSoon reports whether steps in flight will free blocks of the window group when they end.
func (l *Loop) windowSoon() bool {
	for _, s := range l.running {
		if s.inFlight > 0 && l.cache.Slides(s.table, s.submitted) {
			return true
		}
	}
	return false
}

// windowLimit limits a prefill chunk to the free blocks of the window group, of which each other
// sequence may need one. The chunk may fill a block in any case.
func (l *Loop) windowLimit(s *sequence, limit int) int {
	if l.cfg.Window == 0 {
		return limit
	}
	size := l.cfg.Runner.BlockSize
	room := max(l.cache.FreeWindow()-(len(l.running)-1), 0)
	most := (len(s.table.Window)+room)*size - s.submitted
	return min(limit, max(most, size-s.submitted%size))
}

// grow makes the blocks of s cover n tokens. short reports that only the window group lacks some,
// and that steps in flight will free those.
func (l *Loop) grow(s *sequence, n int) (ok, short bool) {
	if !l.cache.Grow(s.table, n) {
		return false, false
	}
	if l.cfg.Window == 0 || l.cache.GrowWindow(s.table, n) {
		return true, false
	}
	return false, l.windowSoon()
}

// ownWindow is Cache.OwnWindow for a sequence that starts with the prompt of its group.
func (l *Loop) ownWindow(t *kvcache.Table, have int) (moves []engine.PreOp, ok bool) {
	src, dst, copied, ok := l.cache.OwnWindow(t, have)
	if copied && have%l.cfg.Runner.BlockSize > 0 {
		moves = append(moves, engine.PreOp{Kind: engine.BlockCopy, Src: src, Dst: dst, Window: true})
	}
	return moves, ok
}
