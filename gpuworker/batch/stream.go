package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// bufferLimit is how many events a stream buffers before its sequence pauses. This backpressure
// bounds the memory of an absent reader. A live reader lags far less.
const bufferLimit = 64

// Stream carries the events of one sequence from the loop to one reader.
type Stream struct {
	loop        *Loop
	cancelled   atomic.Bool
	withheld    atomic.Bool // see Withhold
	cached      atomic.Int64
	cancelledAt struct { // guarded by loop.inbox
		step  uint64 // the newest submitted step at that moment
		ended uint64 // steps that had ended
		time  time.Time
	}
	ready chan struct{} // holds one token while events or an end wait

	mu struct {
		sync.Mutex
		events  []Event
		err     error
		ended   bool
		paused  bool // the loop found the buffer full and waits for the reader
		timings Timings
	}
}

func newStream(l *Loop) *Stream { return &Stream{loop: l, ready: make(chan struct{}, 1)} }

// Recv appends the buffered events to dst. It blocks until there is one, the sequence has ended, or
// ctx ends. After the event with Done it returns dst unchanged and nil. A failed sequence returns
// its error after its last event.
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

// Cancel keeps the sequence out of every step that is not submitted yet. Its blocks are free when
// the steps in flight have ended. Cancel is idempotent and may be called after the end.
func (s *Stream) Cancel() {
	inbox := &s.loop.inbox
	inbox.Lock()
	defer inbox.Unlock()
	if s.cancelled.Load() {
		return
	}
	s.cancelledAt.step, s.cancelledAt.ended, s.cancelledAt.time = inbox.submitted, inbox.ended, time.Now()
	s.cancelled.Store(true)
	s.loop.nudge()
}

// Withhold states that the reader does not read for now, because it must first finish another
// stream of the request. The sequence pauses and may lose its slot, but does not end with
// ErrSlowReader. Before the reader withdraws the statement it must read all buffered events.
func (s *Stream) Withhold(on bool) { s.withheld.Store(on) }

// lastStep is the last step that may contain a cancelled sequence.
func (s *Stream) lastStep() uint64 {
	inbox := &s.loop.inbox
	inbox.Lock()
	defer inbox.Unlock()
	return s.cancelledAt.step
}

// sinceCancel returns the time and the number of finished steps since the cancellation.
func (s *Stream) sinceCancel(now time.Time) (time.Duration, int) {
	inbox := &s.loop.inbox
	inbox.Lock()
	defer inbox.Unlock()
	return now.Sub(s.cancelledAt.time), int(inbox.ended - s.cancelledAt.ended)
}

// full reports whether the buffer has no room beyond the pending events. If so, the reader's next
// Recv wakes the loop.
func (s *Stream) full(pending int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.paused = len(s.mu.events)+pending >= bufferLimit
	return s.mu.paused
}

// setQueueTime records how long the sequence waited for its first slot.
func (s *Stream) setQueueTime(waited time.Duration) {
	s.mu.Lock()
	s.mu.timings.Queue = max(waited, 1)
	s.mu.Unlock()
}

// Timings is where the sequence's time went until its last event. It is zero before the first slot.
func (s *Stream) Timings() Timings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.timings
}

// Cached is how many prompt tokens came from the prefix cache. It is final from the first event on.
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
