package batch

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// swapped is what of a preempted sequence waits in host memory: its blocks from index first on, with all positions below tokens.
// Blocks before them were others' too, and are worth looking for when it comes back; where they are gone, it is computed again.
type swapped struct {
	first  int
	blocks []int32 // of the host
	tokens int
	going  bool // the moves out are not submitted yet
}

// swapOut adds the moves that copy what s has computed to host memory, if that and the way back take less time than computing it
// again and the host has room. The blocks may be handed out at once: who gets them writes to them in the step of these moves
// at the earliest, and behind them.
func (l *Loop) swapOut(s *sequence) bool {
	size := l.cfg.Runner.BlockSize
	first := min(l.common(s), s.promptLength/size)
	n := l.cache.BlocksFor(s.computed) - first
	if n <= 0 || n > l.cache.FreeHost() || !l.movable(n) || !l.swapPays(n, s.computed-first*size) {
		return false
	}
	blocks, ok := l.cache.TakeHost(n)
	if !ok {
		return false
	}
	for i, b := range blocks {
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockOut, Src: s.table.Blocks[first+i], Dst: b})
	}
	s.swap = &swapped{first: first, blocks: blocks, tokens: s.computed, going: true}
	return true
}

// mostMoves is how many moves a step may have; every engine takes so many, and one for each block that there is.
const mostMoves = 32768

// movable says whether the next step has room for so many moves more. What finds none is computed.
func (l *Loop) movable(n int) bool {
	return len(l.plan.moves)+n <= min(mostMoves, l.cfg.Runner.KVBlocks+l.cfg.Runner.HostBlocks)
}

// swapPays says whether blocks travel out and back in less time than tokens are computed again. A loop that has computed no
// prompt yet cannot tell.
func (l *Loop) swapPays(blocks, tokens int) bool {
	return l.prefill.known() && l.transfer(2*blocks) < l.prefill.lasts(tokens)
}

func (l *Loop) transfer(blocks int) time.Duration {
	return time.Duration(float64(blocks) * float64(l.cfg.BlockBytes) / l.cfg.HostRate * float64(time.Second))
}

// common is how many lead blocks of s another table has too: a preemption does not free those.
func (l *Loop) common(s *sequence) int {
	longest := 0
	with := func(t *kvcache.Table) {
		n := 0
		for n < min(len(t.Blocks), len(s.table.Blocks)) && t.Blocks[n] == s.table.Blocks[n] {
			n++
		}
		longest = max(longest, n)
	}
	for _, other := range l.slots {
		if other != nil && other != s {
			with(other.table)
		}
	}
	for _, f := range l.kept {
		with(f.prompt)
	}
	return longest
}

// discard gives up what of a sequence is or was to be in host memory.
func (l *Loop) discard(s *sequence) {
	w := s.swap
	if w == nil {
		return
	}
	s.swap = nil
	if w.going {
		l.tell(Recompute)
		l.plan.moves = slices.DeleteFunc(l.plan.moves, func(m engine.PreOp) bool {
			return m.Kind == engine.BlockOut && slices.Contains(w.blocks, m.Dst)
		})
	}
	l.giveHost(w.blocks)
}

// stay gives up all moves out that no step has: their sequences are computed again. It says whether there were any.
func (l *Loop) stay() bool {
	before := len(l.plan.moves)
	for s := range l.queue.Each {
		if s.swap != nil && s.swap.going {
			l.discard(s)
		}
	}
	return len(l.plan.moves) < before
}

// moved notes that the engine took a step, and with it all moves: what it reads of host memory may be written by the next.
func (l *Loop) moved() {
	for s := range l.queue.Each {
		if s.swap != nil && s.swap.going {
			s.swap.going = false
			l.tell(Swap)
		}
	}
	l.plan.moves = l.plan.moves[:0]
	l.giveHost(l.plan.returning)
	l.plan.returning = l.plan.returning[:0]
}

// abandon drops the moves of an idle loop: whoever decided them has gone.
func (l *Loop) abandon() {
	if len(l.running)+l.queue.Len()+len(l.departing) == 0 {
		l.moved()
	}
}

// tell counts what becomes of what a preempted sequence had computed.
func (l *Loop) tell(p Preemption) {
	if p == Swap {
		l.counters.swapped.Add(1)
	}
	if o := l.cfg.Observer; o != nil {
		o.Preempted(p)
	}
}

func (l *Loop) giveHost(blocks []int32) {
	if err := l.cache.GiveHost(blocks); err != nil {
		l.logger.Error("give back blocks of host memory", "error", err)
	}
}
