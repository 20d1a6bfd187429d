package batch

import (
	"fmt"
	"slices"
	"time"
)

// reap ends sequences that were cancelled, that waited too long for a slot, or whose readers
// stalled too long. It preempts the sequences of slow consumers while others wait. Those continue
// when their buffers have room, and get the same bits.
func (l *Loop) reap(now time.Time) {
	waiting := slices.Collect(l.queue.Each)
	for _, s := range slices.Concat(waiting, l.running, l.departing) {
		if s.stream.cancelled.Load() && !s.ended {
			l.cancel(s)
		}
	}
	for _, s := range waiting {
		if !s.ended && l.expires(s, now) {
			l.expire(s, now)
		}
	}
	othersWait := slices.ContainsFunc(waiting, func(s *sequence) bool { return !s.ended && !s.full() })
	for _, s := range slices.Concat(waiting, l.running) {
		if s.ended {
			continue
		}
		switch stalled := s.stalled(now, othersWait); {
		case stalled > l.cfg.StallLimit && !s.stream.withheld.Load():
			s.stream.end(fmt.Errorf("%w: it left %d events unread for %v while others waited",
				ErrSlowReader, bufferLimit, l.cfg.StallLimit))
			l.retire(s)
		case stalled > l.cfg.YieldAfter && s.slot >= 0:
			l.preempt(s)
		}
	}
}

// stalled is how long the reader has paused its sequence at the expense of others: while they wait
// for its slot, or after it lost the slot.
func (s *sequence) stalled(now time.Time, othersWait bool) time.Duration {
	if s.slot >= 0 && !othersWait || !s.full() {
		s.stalledSince = time.Time{}
		return 0
	}
	if s.stalledSince.IsZero() {
		s.stalledSince = now
	}
	return now.Sub(s.stalledSince)
}

// cancel ends a sequence at its reader's request.
func (l *Loop) cancel(s *sequence) {
	l.counters.cancelled.Add(1)
	s.cancelled = true
	s.stream.end(ErrCancelled)
	l.retire(s)
}

// WaitError is ErrQueueTimeout with its numbers.
type WaitError struct {
	Waited, Most time.Duration
	Others       int // other sequences that wait
}

// Error implements error.
func (e *WaitError) Error() string {
	return fmt.Sprintf("%v: it waited %v, the longest time allowed at this worker; other waiting sequences: %d; try again later",
		ErrQueueTimeout, e.Waited.Round(time.Millisecond), e.Others)
}

// Unwrap returns ErrQueueTimeout.
func (e *WaitError) Unwrap() error { return ErrQueueTimeout }

// expires reports whether a sequence waited too long for its first slot. A sequence never expires
// if it or another one of its request had a slot, here or on another worker: no computed work is
// thrown away, and no answer ends after it began.
func (l *Loop) expires(s *sequence, now time.Time) bool {
	switch most := l.cfg.MaxQueueTime; {
	case most <= 0, s.request.Resumed, !s.started.IsZero(), s.group != nil && s.group.started:
		return false
	default:
		return now.Sub(s.arrived) >= most
	}
}

// expire ends a sequence that waited too long.
func (l *Loop) expire(s *sequence, now time.Time) {
	s.stream.end(&WaitError{Waited: now.Sub(s.arrived), Most: l.cfg.MaxQueueTime, Others: l.queue.Len() - 1})
	l.retire(s)
}
