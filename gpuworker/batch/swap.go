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
	first  int
	blocks []int32 // host blocks
	// windows are host blocks of the window group, from index firstWindow on.
	firstWindow int
	windows     []int32
	state       int32 // state of host memory, if layers carry one
	tokens      int
	pending     bool // the moves out are not submitted yet
}

// swapOut plans the moves that copy the computed blocks of s to host memory, if there is room and
// if moving out and back is faster than recomputing. The device blocks may be reused at once: the
// step that overwrites them is submitted with or after these moves, and a step does its moves
// first.
func (l *Loop) swapOut(s *sequence) bool {
	size := l.cfg.Runner.BlockSize
	first := min(l.sharedBlocks(s), s.promptLength/size)
	if l.cfg.States || l.cfg.Window > 0 {
		// A match ends where a state stands, or where window blocks are, which may be before the
		// shared blocks end.
		first = 0
	}
	n, firstWindow, windows := l.cache.BlocksFor(s.computed)-first, 0, 0
	if l.cfg.Window > 0 {
		firstWindow = engine.FirstWindowBlock(s.computed, l.cfg.Window, size)
		windows = max(0, l.cache.BlocksFor(s.computed)-firstWindow)
	}
	if n <= 0 || n > l.cache.FreeHost() || windows > l.cache.FreeHostWindow() || !l.movable(n+windows+1) ||
		!l.swapPays(n, windows, s.computed-first*size) {
		return false
	}
	state := int32(-1)
	if l.cfg.States {
		var ok bool
		if state, ok = l.cache.AllocHostState(); !ok {
			return false
		}
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.StateOut, Slot: s.slot, Src: s.state, Dst: state})
	}
	blocks, _ := l.cache.AllocHost(n) // the caller has checked that n are free
	for i, b := range blocks {
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockOut, Src: s.table.Blocks[first+i], Dst: b})
	}
	hosted, _ := l.cache.AllocHostWindow(windows)
	for i, b := range hosted {
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockOut, Src: s.table.Window[firstWindow+i], Dst: b, Window: true})
	}
	s.swap = &hostCopy{
		first: first, blocks: blocks, firstWindow: firstWindow, windows: hosted, state: state, tokens: s.computed, pending: true,
	}
	return true
}

// maxMoves bounds the moves of a step. Every engine accepts this many, and one for each block.
const maxMoves = 32768

// movable reports whether the next step has room for n more moves. Without room, a block is
// recomputed instead.
func (l *Loop) movable(n int) bool { return len(l.plan.moves)+n <= l.mostMoves() }

// mostMoves is how many moves a step may have.
func (l *Loop) mostMoves() int {
	c := &l.cfg.Runner
	return min(l.cfg.moves, c.KVBlocks+c.HostBlocks+c.HostStates+c.WindowBlocks+c.HostWindowBlocks)
}

// swapPays reports whether moving blocks out and back takes less time than recomputing tokens. It
// is false while the prefill rate is unknown.
func (l *Loop) swapPays(blocks, windows, tokens int) bool {
	return l.prefill.known() && 2*l.transfer(blocks, windows) < l.prefill.duration(tokens)
}

// transfer is how long blocks of both groups, and a state where there is one, take one way.
func (l *Loop) transfer(blocks, windows int) time.Duration { return l.duration(blocks, windows, 1) }

// duration is how long blocks of both groups and states take one way.
func (l *Loop) duration(blocks, windows, states int) time.Duration {
	bytes := float64(blocks)*float64(l.cfg.BlockBytes) + float64(windows)*float64(l.cfg.WindowBlockBytes) +
		float64(states)*float64(l.cfg.StateBytes)
	return time.Duration(bytes / l.cfg.HostRate * float64(time.Second))
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
			blocks := w.blocks
			if m.Window {
				blocks = w.windows
			}
			return m.Kind == engine.BlockOut && slices.Contains(blocks, m.Dst) || m.Kind == engine.StateOut && m.Dst == w.state
		})
	}
	l.releaseHost(w.blocks)
	l.releaseHostWindows(w.windows)
	if w.state >= 0 {
		l.releaseHostStates([]int32{w.state})
	}
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
	l.cache.CopiesSubmitted()
	l.releaseReturning()
}

// releaseReturning gives back the host memory that moves of the plan read.
func (l *Loop) releaseReturning() {
	l.releaseHost(l.plan.returning)
	l.releaseHostWindows(l.plan.returningWindows)
	l.releaseHostStates(l.plan.returningStates)
	p := &l.plan
	p.returning, p.returningWindows, p.returningStates = p.returning[:0], p.returningWindows[:0], p.returningStates[:0]
}

// dropMoves clears the moves of a loop that has no sequences left. With a host tier they wait for
// the next step, because the tier counts on them. Host memory that they read is free in any case:
// what is planned later runs after them.
func (l *Loop) dropMoves() {
	if len(l.running)+l.queue.Len()+len(l.departing) > 0 {
		return
	}
	if l.cfg.Tier.Blocks == 0 {
		l.plan.moves = l.plan.moves[:0]
	}
	l.releaseReturning()
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

func (l *Loop) releaseHostWindows(blocks []int32) {
	if err := l.cache.ReleaseHostWindow(blocks); err != nil {
		l.logger.Error("give back window blocks of host memory", "error", err)
	}
}

func (l *Loop) releaseHostStates(ids []int32) {
	if err := l.cache.ReleaseHostStates(ids); err != nil {
		l.logger.Error("give back states of host memory", "error", err)
	}
}
