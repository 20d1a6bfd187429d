package kvcache

import "fmt"

// hostBlocks tracks which blocks, or which states, of host memory are in use.
type hostBlocks struct {
	free []int32 // stack, low numbers on top: memory is allocated at first use
	used []bool
}

func newHostBlocks(n int) hostBlocks {
	h := hostBlocks{free: make([]int32, n), used: make([]bool, n)}
	for i := range h.free {
		h.free[i] = int32(n - 1 - i)
	}
	return h
}

// FreeHost is the number of host blocks that AllocHost can return.
func (c *Cache) FreeHost() int { return int(c.hostCount.Load()) }

// AllocHost returns n >= 0 host blocks. If fewer are free, it changes nothing and returns false.
func (c *Cache) AllocHost(n int) ([]int32, bool) {
	blocks, ok := c.host.alloc(n)
	c.hostCount.Store(int64(len(c.host.free)))
	return blocks, ok
}

// AllocHostState returns a state of host memory, or false if none is free.
func (c *Cache) AllocHostState() (int32, bool) {
	ids, ok := c.hostStates.alloc(1)
	if !ok {
		return none, false
	}
	return ids[0], true
}

func (h *hostBlocks) alloc(n int) ([]int32, bool) {
	if n < 0 || n > len(h.free) {
		return nil, false
	}
	blocks := make([]int32, n)
	for i := range blocks {
		b := h.free[len(h.free)-1]
		h.free = h.free[:len(h.free)-1]
		h.used[b] = true
		blocks[i] = b
	}
	return blocks, true
}

// ReleaseHost frees host blocks. A block that is not in use, or listed twice, is an error, and
// nothing has changed then. Blocks may be released as soon as the step that reads them is
// submitted, because the device works in order.
func (c *Cache) ReleaseHost(blocks []int32) error {
	err := c.host.release(blocks)
	c.hostCount.Store(int64(len(c.host.free)))
	return err
}

// ReleaseHostStates frees states of host memory, as ReleaseHost frees blocks.
func (c *Cache) ReleaseHostStates(ids []int32) error { return c.hostStates.release(ids) }

func (h *hostBlocks) release(blocks []int32) error {
	for i, b := range blocks {
		if b < 0 || int(b) >= len(h.used) || !h.used[b] {
			for _, back := range blocks[:i] {
				h.used[back] = true
			}
			return fmt.Errorf("give back %d of %d in host memory: it is not taken", b, len(h.used))
		}
		h.used[b] = false
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		h.free = append(h.free, blocks[i])
	}
	return nil
}
