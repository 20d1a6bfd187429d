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
	l.counters.preempted.Add(1)
	if o := l.cfg.Observer; o != nil {
		o.Preempted(Recompute)
	}
	s.leaving = true
	l.depart(s)
}

// depart keeps a sequence out of every step planned from here on.
func (l *Loop) depart(s *sequence) {
	same := func(r *sequence) bool { return r == s }
	l.running, l.waiting = slices.DeleteFunc(l.running, same), slices.DeleteFunc(l.waiting, same)
	if s.flying > 0 {
		if !slices.Contains(l.departing, s) {
			l.departing = append(l.departing, s)
		}
		return
	}
	l.departing = slices.DeleteFunc(l.departing, same)
	again := !s.over
	l.drop(s)
	if again {
		at, _ := slices.BinarySearchFunc(l.waiting, s, byAge)
		l.waiting = slices.Insert(l.waiting, at, s)
	}
}

// landed lets a sequence go whose last step in flight has ended, if it is to.
func (l *Loop) landed(s *sequence) {
	if s.slot >= 0 && s.flying == 0 && (s.over || s.leaving) {
		l.depart(s)
	}
}

// drop gives back a sequence's slot and blocks. No step that it is in is in flight.
func (l *Loop) drop(s *sequence) {
	if err := l.pool.Release(s.blocks); err != nil {
		l.logger.Error("released a block twice", "error", err)
	}
	if s.slot >= 0 {
		l.slots[s.slot] = nil
	}
	if o := l.cfg.Observer; o != nil && s.over && s.stream.cancelled.Load() {
		o.Freed(s.stream.sinceCancel(time.Now()))
	}
	s.rewind()
}
