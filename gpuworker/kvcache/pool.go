package kvcache

import (
	"fmt"
	"sync/atomic"
)

// Pool is the set of KV blocks of one runner. Invariant: free + held = total, no block in two places.
type Pool struct {
	blockSize int
	total     int
	free      []int32 // stack: the block freed last is given first, while it is still in the cache
	held      []bool  // by block id
	freeCount atomic.Int64
}

// NewPool returns a pool of blocks 0 .. blocks-1 of blockSize tokens each, all free.
func NewPool(blocks, blockSize int) *Pool {
	p := &Pool{blockSize: blockSize, total: blocks, free: make([]int32, blocks), held: make([]bool, blocks)}
	for i := range p.free {
		p.free[i] = int32(blocks - 1 - i)
	}
	p.freeCount.Store(int64(blocks))
	return p
}

// BlockSize is the number of tokens a block holds.
func (p *Pool) BlockSize() int { return p.blockSize }

// Total is the number of blocks.
func (p *Pool) Total() int { return p.total }

// Free is the number of free blocks. It may be called from any goroutine.
func (p *Pool) Free() int { return int(p.freeCount.Load()) }

// BlocksFor is the number of blocks that n tokens take.
func (p *Pool) BlocksFor(n int) int { return (n + p.blockSize - 1) / p.blockSize }

// Grow appends blocks to table until it covers n tokens. When too few are free it changes nothing and returns false.
func (p *Pool) Grow(table []int32, n int) ([]int32, bool) {
	need := p.BlocksFor(n) - len(table)
	if need <= 0 {
		return table, true
	}
	if need > len(p.free) {
		return table, false
	}
	cut := len(p.free) - need
	for i := len(p.free) - 1; i >= cut; i-- {
		p.held[p.free[i]] = true
		table = append(table, p.free[i])
	}
	p.free = p.free[:cut]
	p.freeCount.Store(int64(len(p.free)))
	return table, true
}

// Release takes back every block of table. Releasing a block that is not held is an error of the caller, reported
// before anything changes.
func (p *Pool) Release(table []int32) error {
	for i, id := range table {
		if id < 0 || int(id) >= p.total || !p.held[id] {
			for _, back := range table[:i] {
				p.held[back] = true
			}
			return fmt.Errorf("release block %d of %d: it is not held", id, p.total)
		}
		p.held[id] = false
	}
	p.free = append(p.free, table...)
	p.freeCount.Store(int64(len(p.free)))
	return nil
}
