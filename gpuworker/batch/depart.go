package batch

import (
	"slices"
	"time"
)

// retire removes a sequence that has ended. Its slot and blocks are free when its last step in
// flight has ended.
func (l *Loop) retire(s *sequence) {
	s.ended = true
	if j := s.masking.job; j != nil {
		j.unused.Store(true)
	}
	l.depart(s)
}

// preempt takes the slot from a sequence, which then waits again at the position of its age.
// Results of its steps in flight still count.
func (l *Loop) preempt(s *sequence) {
	s.preempted = true
	l.depart(s)
}

// depart excludes a sequence from every later step, and frees its slot once no step in flight
// contains it.
func (l *Loop) depart(s *sequence) {
	same := func(r *sequence) bool { return r == s }
	l.running = slices.DeleteFunc(l.running, same)
	l.queue.Remove(s)
	if s.inFlight > 0 {
		if !slices.Contains(l.departing, s) {
			l.departing = append(l.departing, s)
		}
		return
	}
	l.departing = slices.DeleteFunc(l.departing, same)
	if s.ended {
		if l.reservedFor == s {
			l.reservedFor = nil
		}
		l.vacate(s)
		l.discard(s)
		if g := s.group; g != nil && s.started.IsZero() {
			l.countMember(g)
		}
		if o := l.cfg.Observer; o != nil && s.cancelled {
			o.Freed(s.stream.sinceCancel(time.Now()))
		}
		return
	}
	l.counters.preempted.Add(1)
	s.preemptions++
	// A sequence with more to recall has its content in the host tier, and would not go on from a
	// copy of its own.
	if s.recalling || !l.swapOut(s) {
		l.recordPreemption(Recompute)
	}
	l.vacate(s)
	l.queue.Push(s, s.class(), s.age)
}

// departIfDone completes the departure of a sequence whose last step in flight has ended.
func (l *Loop) departIfDone(s *sequence) {
	if s.slot >= 0 && s.inFlight == 0 && (s.ended || s.preempted) {
		l.depart(s)
	}
}

// vacate frees the slot and blocks of a sequence. No step in flight may contain it.
func (l *Loop) vacate(s *sequence) {
	if s.slot < 0 {
		return
	}
	if g := s.group; g != nil && g.leader == s {
		g.leader = nil
	}
	l.publishTail(s)
	l.giveUpStates(s)
	l.release(s.table)
	l.slots[s.slot] = nil
	l.leave(s.request.Tenant)
	s.rewind()
}
