package batch

import (
	"cmp"
	"slices"
	"time"
)

// admit gives slots to waiting sequences by age, as long as all that they have to compute fits the free blocks; those
// whose readers must catch up first are passed over. Beside others, one block more must be free: a sequence preempted for
// want of a block would want it again at once.
func (l *Loop) admit() {
	for !l.short {
		at := slices.IndexFunc(l.waiting, func(s *sequence) bool { return !s.full() })
		if at < 0 {
			return
		}
		s := l.waiting[at]
		slot, need := slices.Index(l.slots, nil), l.pool.BlocksFor(len(s.tokens))
		if len(l.running) > 0 {
			need++
		}
		if slot < 0 || need > l.pool.Free() {
			return
		}
		l.waiting = slices.Delete(l.waiting, at, at+1)
		l.generations[slot]++
		s.slot, s.generation, s.fresh = int32(slot), l.generations[slot], true
		if s.started.IsZero() {
			s.started = time.Now()
			if o := l.cfg.Observer; o != nil {
				o.Admitted(s.started.Sub(s.arrived), s.promptLength, 0)
			}
		}
		l.slots[slot] = s
		at, _ = slices.BinarySearchFunc(l.running, s, byUrgency)
		l.running = slices.Insert(l.running, at, s)
		// Blocks are taken at once so that the next waiting sequence sees what is really free.
		s.blocks, _ = l.pool.Grow(s.blocks, len(s.tokens))
	}
}

func byAge(a, b *sequence) int { return cmp.Compare(a.age, b.age) }
