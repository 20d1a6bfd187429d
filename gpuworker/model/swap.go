package model

import "sync"

// swapSpace is the worker's host memory for the blocks of preempted sequences, shared out to models by number: an engine takes
// the memory itself when a block is first written. Safe for concurrent use.
type swapSpace struct {
	mu   sync.Mutex
	left uint64 // guarded by mu; bytes that no model may use
}

// blocks is how many blocks of so many bytes a model with a cache of kvBlocks may have: no more than its cache, and no more than
// are left. An engine without such memory prices them at 0 bytes and gets none.
func (s *swapSpace) blocks(kvBlocks int, bytes uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes == 0 {
		return 0
	}
	return int(min(uint64(kvBlocks), s.left/bytes))
}

// take takes what a model may use out of what is left, and returns it. Loads take one after another, so that what blocks said
// is still there; where the price has risen since, it takes what is left.
func (s *swapSpace) take(blocks int, bytes uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := min(uint64(blocks)*bytes, s.left)
	s.left -= taken
	return taken
}

// give gives it back.
func (s *swapSpace) give(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left += bytes
}
