package kvcache

import "fmt"

// hostBlocks is the blocks of host memory: each is free or taken.
type hostBlocks struct {
	free  []int32 // stack: low numbers first, because memory for a block is found when it is first written
	taken []bool
}

func newHostBlocks(n int) hostBlocks {
	h := hostBlocks{free: make([]int32, n), taken: make([]bool, n)}
	for i := range h.free {
		h.free[i] = int32(n - 1 - i)
	}
	return h
}

// FreeHost is the number of host blocks that TakeHost can hand out.
func (c *Cache) FreeHost() int { return int(c.hostCount.Load()) }

// TakeHost hands out n >= 0 host blocks. When fewer are free it changes nothing and returns false.
func (c *Cache) TakeHost(n int) ([]int32, bool) {
	h := &c.host
	if n < 0 || n > len(h.free) {
		return nil, false
	}
	blocks := make([]int32, n)
	for i := range blocks {
		b := h.free[len(h.free)-1]
		h.free = h.free[:len(h.free)-1]
		h.taken[b] = true
		blocks[i] = b
	}
	c.hostCount.Store(int64(len(h.free)))
	return blocks, true
}

// GiveHost takes host blocks back. A block that is not taken, or named twice, is an error, and nothing has changed then. The
// device works in the order of submission, so blocks go back as soon as the step that reads them is submitted.
func (c *Cache) GiveHost(blocks []int32) error {
	h := &c.host
	for i, b := range blocks {
		if b < 0 || int(b) >= len(h.taken) || !h.taken[b] {
			for _, back := range blocks[:i] {
				h.taken[back] = true
			}
			return fmt.Errorf("give back host block %d of %d: it is not taken", b, len(h.taken))
		}
		h.taken[b] = false
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		h.free = append(h.free, blocks[i])
	}
	c.hostCount.Store(int64(len(h.free)))
	return nil
}
