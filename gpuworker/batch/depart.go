package batch

import (
	"slices"
	"time"
)

// retire takes out a sequence that has ended. What it holds is free at once or, while it is in steps in flight, when the last of
// them has ended.
func (l *Loop) retire(s *sequence) {
	s.over = true
	l.depart(s)
}

// preempt takes the place of a sequence, which waits again by its age. Its steps in flight still count.
func (l *Loop) preempt(s *sequence) {
	s.leaving = true
	l.depart(s)
}

// depart keeps a sequence out of every step planned from here on, and lets it go if it is in none in flight.
func (l *Loop) depart(s *sequence) {
	same := func(r *sequence) bool { return r == s }
	l.running = slices.DeleteFunc(l.running, same)
	l.queue.Remove(s)
	if s.flying > 0 {
		if !slices.Contains(l.departing, s) {
			l.departing = append(l.departing, s)
		}
		return
	}
	l.departing = slices.DeleteFunc(l.departing, same)
	if s.over {
		if l.guest == s {
			l.guest = nil
		}
		l.vacate(s)
		l.discard(s)
		if f := s.family; f != nil && s.started.IsZero() {
			l.came(f)
		}
		if o := l.cfg.Observer; o != nil && s.cancelled {
			o.Freed(s.stream.sinceCancel(time.Now()))
		}
		return
	}
	l.counters.preempted.Add(1)
	s.preemptions++
	if !l.swapOut(s) {
		l.tell(Recompute)
	}
	l.vacate(s)
	l.queue.Push(s, s.class(), s.age)
}

// landed lets a sequence go whose last step in flight has ended, if it is to.
func (l *Loop) landed(s *sequence) {
	if s.slot >= 0 && s.flying == 0 && (s.over || s.leaving) {
		l.depart(s)
	}
}

// vacate gives back a sequence's slot and blocks, if it has a place. No step that it is in is in flight.
func (l *Loop) vacate(s *sequence) {
	if s.slot < 0 {
		return
	}
	if f := s.family; f != nil && f.leader == s {
		f.leader = nil
	}
	l.release(s.table)
	l.slots[s.slot] = nil
	l.leave(s.request.Tenant)
	s.rewind()
}
