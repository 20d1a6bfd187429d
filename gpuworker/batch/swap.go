package batch

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// hostCopy is the part of a preempted sequence that is in host memory: its blocks from index first
// on, with all positions below tokens. Blocks before first were shared with other tables and are
// likely to be still on the device. If they are not, the whole sequence is recomputed.
type hostCopy struct {
	first   int
	blocks  []int32 // host blocks
	tokens  int
	pending bool // the moves out are not submitted yet
}

// swapOut plans the moves that copy the computed blocks of s to host memory, if there is room and
// if moving out and back is faster than recomputing. The device blocks may be reused at once: the
// step that overwrites them is submitted with or after these moves, and a step does its moves
// first.
func (l *Loop) swapOut(s *sequence) bool {
	size := l.cfg.Runner.BlockSize
	first := min(l.sharedBlocks(s), s.promptLength/size)
	n := l.cache.BlocksFor(s.computed) - first
	if n <= 0 || n > l.cache.FreeHost() || !l.movable(n) || !l.swapPays(n, s.computed-first*size) {
		return false
	}
	blocks, ok := l.cache.AllocHost(n)
	if !ok {
		return false
	}
	for i, b := range blocks {
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockOut, Src: s.table.Blocks[first+i], Dst: b})
	}
	s.swap = &hostCopy{first: first, blocks: blocks, tokens: s.computed, pending: true}
	return true
}

// maxMoves bounds the moves of a step. Every engine accepts this many, and one for each block.
const maxMoves = 32768

// movable reports whether the next step has room for n more moves. Without room, a block is
// recomputed instead.
func (l *Loop) movable(n int) bool {
	return len(l.plan.moves)+n <= min(maxMoves, l.cfg.Runner.KVBlocks+l.cfg.Runner.HostBlocks)
}

// swapPays reports whether moving blocks out and back takes less time than recomputing tokens. It
// is false while the prefill rate is unknown.
func (l *Loop) swapPays(blocks, tokens int) bool {
	return l.prefill.known() && l.transfer(2*blocks) < l.prefill.duration(tokens)
}

func (l *Loop) transfer(blocks int) time.Duration {
	return time.Duration(float64(blocks) * float64(l.cfg.BlockBytes) / l.cfg.HostRate * float64(time.Second))
}

// sharedBlocks is the number of lead blocks of s that another table has too. Preempting s does not
// free those.
func (l *Loop) sharedBlocks(s *sequence) int {
	longest := 0
	compare := func(t *kvcache.Table) {
		n := 0
		for n < min(len(t.Blocks), len(s.table.Blocks)) && t.Blocks[n] == s.table.Blocks[n] {
			n++
		}
		longest = max(longest, n)
	}
	for _, other := range l.slots {
		if other != nil && other != s {
			compare(other.table)
		}
	}
	for _, g := range l.sharedPrompts {
		compare(g.prompt)
	}
	return longest
}

// discard gives up the host copy of a sequence, and its moves out if they are not submitted.
func (l *Loop) discard(s *sequence) {
	w := s.swap
	if w == nil {
		return
	}
	s.swap = nil
	if w.pending {
		l.recordPreemption(Recompute)
		l.plan.moves = slices.DeleteFunc(l.plan.moves, func(m engine.PreOp) bool {
			return m.Kind == engine.BlockOut && slices.Contains(w.blocks, m.Dst)
		})
	}
	l.releaseHost(w.blocks)
}

// cancelSwapOuts discards all host copies whose moves are not submitted; their sequences will be
// recomputed. It reports whether there were any.
func (l *Loop) cancelSwapOuts() bool {
	before := len(l.plan.moves)
	for s := range l.queue.Each {
		if s.swap != nil && s.swap.pending {
			l.discard(s)
		}
	}
	return len(l.plan.moves) < before
}

// movesSubmitted clears the moves after the engine accepted a step. Host blocks that the step reads
// are free from here on, because later steps run after it.
func (l *Loop) movesSubmitted() {
	for s := range l.queue.Each {
		if s.swap != nil && s.swap.pending {
			s.swap.pending = false
			l.recordPreemption(Swap)
		}
	}
	l.plan.moves = l.plan.moves[:0]
	l.releaseHost(l.plan.returning)
	l.plan.returning = l.plan.returning[:0]
}

// dropMoves clears the moves of a loop that has no sequences left.
func (l *Loop) dropMoves() {
	if len(l.running)+l.queue.Len()+len(l.departing) == 0 {
		l.movesSubmitted()
	}
}

// recordPreemption counts how a preempted sequence will be restored.
func (l *Loop) recordPreemption(p Preemption) {
	if p == Swap {
		l.counters.swapped.Add(1)
	}
	if o := l.cfg.Observer; o != nil {
		o.Preempted(p)
	}
}

func (l *Loop) releaseHost(blocks []int32) {
	if err := l.cache.ReleaseHost(blocks); err != nil {
		l.logger.Error("give back blocks of host memory", "error", err)
	}
}
