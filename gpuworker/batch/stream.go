package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// bufferLimit is how many events a stream holds before its sequence pauses. It bounds what a reader that has gone
// away can pile up, and is far above what a live reader lags behind.
const bufferLimit = 64

// Stream carries the events of one sequence from the loop to one reader.
type Stream struct {
	loop        *Loop
	cancelled   atomic.Bool
	withheld    atomic.Bool // the reader does not read on purpose
	cached      atomic.Int64
	cancelledAt struct { // when it was cancelled; under loop.mail
		step  uint64 // the last one submitted before
		ended uint64 // steps that had ended
		time  time.Time
	}
	ready chan struct{} // holds one token when events or an end wait

	mu struct {
		sync.Mutex
		events  []Event
		err     error
		ended   bool
		paused  bool // the loop has seen it full and waits for the reader
		timings Timings
	}
}

func newStream(l *Loop) *Stream { return &Stream{loop: l, ready: make(chan struct{}, 1)} }

// Recv appends the events that wait to dst, waiting for one if there is none. After the event with Done it returns
// dst as it was and nil; a failed sequence ends with its error after its last event.
func (s *Stream) Recv(ctx context.Context, dst []Event) ([]Event, error) {
	for {
		s.mu.Lock()
		if len(s.mu.events) > 0 {
			dst = append(dst, s.mu.events...)
			clear(s.mu.events)
			s.mu.events = s.mu.events[:0]
			resume := s.mu.paused
			s.mu.paused = false
			s.mu.Unlock()
			if resume {
				s.loop.nudge()
			}
			return dst, nil
		}
		ended, err := s.mu.ended, s.mu.err
		s.mu.Unlock()
		if ended {
			return dst, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return dst, context.Cause(ctx)
		}
	}
}

// Cancel keeps the sequence out of every step not submitted yet; its blocks are free when the steps in flight have ended. It is
// idempotent and may be called after the end.
func (s *Stream) Cancel() {
	mail := &s.loop.mail
	mail.Lock()
	defer mail.Unlock()
	if s.cancelled.Load() {
		return
	}
	s.cancelledAt.step, s.cancelledAt.ended, s.cancelledAt.time = mail.submitted, mail.ended, time.Now()
	s.cancelled.Store(true)
	s.loop.nudge()
}

// Withhold states whether the reader reads nothing on purpose, because another stream of its request comes first. The sequence
// pauses as for any reader, and gives up its slot while others wait for one, but ErrSlowReader does not end it. Before the reader
// withdraws the statement it reads what has come.
func (s *Stream) Withhold(on bool) { s.withheld.Store(on) }

// lastStep is the last step that a cancelled sequence may be in.
func (s *Stream) lastStep() uint64 {
	mail := &s.loop.mail
	mail.Lock()
	defer mail.Unlock()
	return s.cancelledAt.step
}

// sinceCancel is how long ago a sequence was cancelled, and how many steps have ended since.
func (s *Stream) sinceCancel(now time.Time) (time.Duration, int) {
	mail := &s.loop.mail
	mail.Lock()
	defer mail.Unlock()
	return now.Sub(s.cancelledAt.time), int(mail.ended - s.cancelledAt.ended)
}

// full says whether the reader must catch up first, with so many events still to come; the loop is woken when it has.
func (s *Stream) full(coming int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.paused = len(s.mu.events)+coming >= bufferLimit
	return s.mu.paused
}

// placed says how long the sequence waited for its first place.
func (s *Stream) placed(waited time.Duration) {
	s.mu.Lock()
	s.mu.timings.Queue = max(waited, 1)
	s.mu.Unlock()
}

// Timings says where the sequence's time went up to its last event, or its first place; all is 0 before that.
func (s *Stream) Timings() Timings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.timings
}

// Cached is how many tokens of the prompt were taken from the prefix cache instead of being computed. It holds from the first
// event on.
func (s *Stream) Cached() int { return int(s.cached.Load()) }

func (s *Stream) push(e Event, t Timings) {
	s.mu.Lock()
	s.mu.timings = t
	s.mu.events = append(s.mu.events, e)
	s.mu.Unlock()
	s.signal()
}

// end closes the stream; a nil error follows a Done event.
func (s *Stream) end(err error) {
	s.mu.Lock()
	s.mu.ended, s.mu.err = true, err
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}
