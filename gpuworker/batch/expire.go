package batch

import (
	"fmt"
	"time"
)

// WaitError is ErrQueueTimeout with its numbers.
type WaitError struct {
	Waited, Most time.Duration
	Others       int // sequences that wait beside it
}

// Error implements error.
func (e *WaitError) Error() string {
	return fmt.Sprintf("%v: it has had none in %v, which is as long as one waits at this worker; waiting beside it: %d; try again later",
		ErrQueueTimeout, e.Waited.Round(time.Millisecond), e.Others)
}

// Unwrap is ErrQueueTimeout.
func (e *WaitError) Unwrap() error { return ErrQueueTimeout }

// expires says whether a waiting sequence has waited for too long. Only who has never had a place does, nor had another of its request,
// here or elsewhere: nothing that was computed is given up, and no answer that has begun.
func (l *Loop) expires(s *sequence, now time.Time) bool {
	switch most := l.cfg.MaxQueueTime; {
	case most <= 0, s.request.Resumed, !s.started.IsZero(), s.family != nil && s.family.began:
		return false
	default:
		return now.Sub(s.arrived) >= most
	}
}

// expire ends a sequence that has waited for too long.
func (l *Loop) expire(s *sequence, now time.Time) {
	s.stream.end(&WaitError{Waited: now.Sub(s.arrived), Most: l.cfg.MaxQueueTime, Others: l.queue.Len() - 1})
	l.retire(s)
}
