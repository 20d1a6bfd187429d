package ingress

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// typeWindow is the type of a WINDOW_UPDATE frame (RFC 9113, section 6.9).
const typeWindow = 0x8

// resets holds the streams of a connection that the server wants to reset.
//
// grpc-go has no call with which a server drops the data that it has queued for a stream. The
// status of a handler that returns is queued after the data, and the data stay until the caller
// reads them. The transport does drop them if it reads a stream error. A WINDOW_UPDATE of 0 is one
// (RFC 9113, section 6.9), and touches nothing else of the connection: the transport answers it
// with RST_STREAM, PROTOCOL_ERROR, and forgets the stream. So reset inserts such a frame between
// two frames of the client. A read that waits is woken by a deadline in the past.
type resets struct {
	pending atomic.Bool // streams is not empty; written with mu held
	mu      sync.Mutex
	streams []uint32 // guarded by mu, as is every SetReadDeadline of this file
	// wakes are the deadlines set by reset whose timeout no read has returned. Guarded by mu.
	wakes int

	once   sync.Once
	closed chan struct{} // closed with the connection
}

// reset asks the reader of the connection to end a stream.
func (c *conn) reset(stream uint32) {
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	c.resets.streams = append(c.resets.streams, stream)
	c.resets.pending.Store(true)
	c.resets.wakes++
	// fails only on an ended connection, which needs no reset
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// inject writes the frames of pending resets to p if the client is between two frames. It returns
// their length.
func (c *conn) inject(p []byte) (n int) {
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	c.parser.stopBetween = len(c.resets.streams) > 0
	if !c.parser.stopBetween || !c.parser.betweenFrames() {
		return 0
	}
	for len(c.resets.streams) > 0 && len(p)-n >= headBytes+4 {
		s := c.resets.streams[0]
		c.resets.streams = c.resets.streams[1:]
		n += copy(p[n:], []byte{0, 0, 4, typeWindow, 0, byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s), 0, 0, 0, 0})
	}
	if len(c.resets.streams) == 0 {
		c.resets.streams, c.parser.stopBetween = nil, false
		c.resets.pending.Store(false)
		_ = c.SetReadDeadline(time.Time{}) // the next read returns the error
	}
	return n
}

// wokenByReset reports whether a read ended because of a reset, and clears the deadline. It returns
// false if the header block's own time is over. The reset may already be injected: a connection
// that implements deadlines with a timer, as bufconn does, may time out after the deadline was
// cleared.
func (c *conn) wokenByReset(err error) bool {
	if timeout, is := errors.AsType[net.Error](err); !is || !timeout.Timeout() || c.headersExpired() {
		return false
	}
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	if c.resets.wakes == 0 {
		return false
	}
	c.resets.wakes--
	_ = c.SetReadDeadline(time.Time{}) // the next read returns the error
	return true
}

// resetting reports whether the transport has not read the reset of a stream yet.
func (c *conn) resetting(stream uint32) bool {
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	return slices.Contains(c.resets.streams, stream)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	defer c.writes.Add(1)
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.resets.once.Do(func() { close(c.resets.closed) })
	return c.Conn.Close()
}

// Reset ends the call's stream at the transport, which drops its queue and sends RST_STREAM. The
// caller's library reports INTERNAL. Reset returns at once. The transport acts later if it cannot
// write, or if the client stops within a frame.
func (s *Stream) Reset() { s.conn.reset(s.stream) }

// Resetting reports whether the transport has not read the stream's Reset yet.
func (s *Stream) Resetting() bool { return s.conn.resetting(s.stream) }

// Writes returns a number that changes when the transport begins or ends a write of the call's
// connection. It is odd during a write.
func (s *Stream) Writes() uint64 { return s.conn.writes.Load() }

// Closed returns a channel that is closed with the call's connection.
func (s *Stream) Closed() <-chan struct{} { return s.conn.resets.closed }

// CloseConnection closes the call's connection and so ends all of its calls.
func (s *Stream) CloseConnection() { _ = s.conn.Close() } // the transport notices
