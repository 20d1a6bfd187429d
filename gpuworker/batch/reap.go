package batch

import (
	"fmt"
	"slices"
	"time"
)

// reap takes out cancelled sequences, those that have waited for too long, and readers that stalled for too long, and takes their places
// from readers that keep others waiting: those are computed again, to the same bits, once their buffers have room.
func (l *Loop) reap(now time.Time) {
	waiting := slices.Collect(l.queue.Each)
	for _, s := range slices.Concat(waiting, l.running, l.departing) {
		if s.stream.cancelled.Load() && !s.over {
			l.cancel(s)
		}
	}
	for _, s := range waiting {
		if !s.over && l.expires(s, now) {
			l.expire(s, now)
		}
	}
	othersWait := slices.ContainsFunc(waiting, func(s *sequence) bool { return !s.over && !s.full() })
	for _, s := range slices.Concat(waiting, l.running) {
		if s.over {
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

// stalled is how long the reader has kept the sequence paused: while others wait for what it holds, or after it had to
// give that up.
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

// cancel ends a sequence whose reader wants no more.
func (l *Loop) cancel(s *sequence) {
	l.counters.cancelled.Add(1)
	s.cancelled = true
	s.stream.end(ErrCancelled)
	l.retire(s)
}
