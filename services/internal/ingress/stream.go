package ingress

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

const (
	// Window is the flow-control window that the server must set for its streams. It bounds what
	// arrives of a message before the handler asks for it.
	Window = 64 << 10
	// smallBytes is the length up to which a message arrives whole before the handler asks for it.
	// It is half of the window, because a quarter may be taken by bytes that were read but not yet
	// credited.
	smallBytes = Window / 2
	// prefixBytes is the length of a gRPC message's prefix: a compression flag and the length.
	prefixBytes = 5
	// From uncheckedFrames on, the frames of a message must average minMeanFrame bytes, because
	// each takes about a hundred bytes of bookkeeping.
	uncheckedFrames = 1024
	minMeanFrame    = 64
)

// Errors in how a client sends messages.
var (
	// ErrNoMessage: the next message has not arrived in time.
	ErrNoMessage = errors.New("no message has arrived")
	// ErrTinyFrames: a message arrives in frames so small that they take far more memory than the
	// message.
	ErrTinyFrames = errors.New("a message arrives in frames of a few bytes each")
	// ErrSecondMessage: a client sends a second message in a call that takes one.
	ErrSecondMessage = errors.New("the call takes one message and a second one was sent")
)

// Stream tracks the messages that arrive for one call. The goroutine that reads the connection
// updates it, and the goroutine that receives the messages reads it.
type Stream struct {
	done   <-chan struct{} // closed when the call has ended
	conn   *conn
	stream uint32

	requested int // messages that Next has returned; used by the receiver only

	mu        sync.Mutex
	single    bool              // guarded by mu; the call takes one message
	prefix    [prefixBytes]byte // guarded by mu; of the current message
	prefixLen int               // guarded by mu; bytes of prefix that have arrived
	remaining int64             // guarded by mu; bytes of the current message that are missing
	frames    int64             // guarded by mu; DATA frames of the current message
	complete  int               // guarded by mu; messages that have arrived whole
	ended     bool              // guarded by mu; nothing more arrives
	err       error             // guarded by mu; ErrTinyFrames or ErrSecondMessage
	// guarded by mu; closed when one of these changes; nil while nothing waits
	changed chan struct{}
}

// ExpectSingle declares that the call takes one message. Call it before Next.
func (s *Stream) ExpectSingle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single = true
	s.checkSecondLocked()
}

// Next waits until the next message can be received. Unless it returns an error, the caller must
// receive a message next.
//
// It returns 0 if receiving takes no budget and no time: the message has arrived, and if it is a
// single one also the end of the stream, or there is no further message. Otherwise it returns the
// length of a message that is larger than smallBytes. It returns ErrNoMessage if neither was known
// within timeout; a timeout of 0 never ends.
func (s *Stream) Next(ctx context.Context, timeout time.Duration) (int64, error) {
	length, known, changed, err := s.peek()
	if !known && err == nil {
		var late <-chan time.Time
		if timeout > 0 {
			timer := time.NewTimer(timeout)
			defer timer.Stop()
			late = timer.C
		}
		for !known && err == nil {
			select {
			case <-changed:
			case <-ctx.Done():
				return 0, nil // receiving returns how the call ended
			case <-late:
				return 0, ErrNoMessage
			}
			length, known, changed, err = s.peek()
		}
	}
	if err != nil {
		return 0, err
	}
	s.requested++
	return length, nil
}

// Err returns the error in the messages so far, or nil. changed is closed when that may have
// changed.
func (s *Stream) Err() (changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changedLocked(), s.err
}

// peek returns what Next returns if it is known, and else a channel to wait for.
func (s *Stream) peek() (length int64, known bool, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return 0, false, nil, s.err
	case s.ended, s.complete > s.requested && !s.single:
		return 0, true, nil, nil
	case s.prefixLen == prefixBytes && s.complete == s.requested && s.lengthLocked() > smallBytes:
		return s.lengthLocked(), true, nil, nil
	}
	return 0, false, s.changedLocked(), nil
}

func (s *Stream) changedLocked() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// lengthLocked returns the length of the current message.
func (s *Stream) lengthLocked() int64 { return int64(binary.BigEndian.Uint32(s.prefix[1:])) }

// addData records a part of the stream's body.
func (s *Stream) addData(part []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(part) > 0 {
		if s.prefixLen < prefixBytes {
			k := copy(s.prefix[s.prefixLen:], part)
			s.prefixLen += k
			part = part[k:]
			s.checkSecondLocked()
			if s.prefixLen < prefixBytes {
				return
			}
			s.remaining = s.lengthLocked()
			s.frames = 0
			if s.remaining > smallBytes {
				s.notifyLocked()
			}
		}
		k := min(int64(len(part)), s.remaining)
		s.remaining -= k
		part = part[k:]
		if s.remaining == 0 {
			s.prefixLen = 0
			s.complete++
			s.notifyLocked()
		}
	}
}

// checkSecondLocked detects a second message in a call that takes one.
func (s *Stream) checkSecondLocked() {
	if s.single && (s.complete > 1 || s.complete > 0 && s.prefixLen > 0) {
		s.err = ErrSecondMessage
		s.notifyLocked()
	}
}

// endFrame records the end of a DATA frame.
func (s *Stream) endFrame() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames++
	if s.prefixLen == prefixBytes && s.frames > uncheckedFrames && s.lengthLocked()-s.remaining < minMeanFrame*s.frames {
		s.err = ErrTinyFrames
		s.notifyLocked()
	}
}

// end records that nothing more arrives.
func (s *Stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.notifyLocked()
}

// notifyLocked wakes the receiver.
func (s *Stream) notifyLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// callEnded reports whether the call has ended.
func (s *Stream) callEnded() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// streamKey is the context key of *Stream.
type streamKey struct{}

// FromContext returns the Stream of a call's context, or nil if its connection is not watched.
func FromContext(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}
