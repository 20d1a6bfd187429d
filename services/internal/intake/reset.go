package intake

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

// resets are the streams of a connection that the server wants reset.
//
// grpc-go has no call with which a server drops the data that it has queued for a stream: the status of a handler that returns is queued
// after the data, and the data stay until the caller reads them. The transport does drop them if it reads a stream error. A WINDOW_UPDATE
// of 0 is one (RFC 9113, section 6.9), and touches nothing else of the connection: the transport answers it with RST_STREAM,
// PROTOCOL_ERROR, and forgets the stream. So reset puts such a frame between two frames of the caller's. A read that waits is woken
// by a deadline in the past.
type resets struct {
	any     atomic.Bool // whether streams has one; written with mu held
	mu      sync.Mutex
	streams []uint32 // guarded by mu; also every SetReadDeadline of this file

	once sync.Once
	gone chan struct{} // closed when the connection is
}

// reset asks the reader of the connection to end a stream.
func (c *conn) reset(stream uint32) {
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	c.resets.streams = append(c.resets.streams, stream)
	c.resets.any.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // a connection that has ended needs no reset
}

// inject writes the frames of pending resets to p if the caller is between two frames, and returns how many bytes.
func (c *conn) inject(p []byte) (n int) {
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	c.frames.pause = len(c.resets.streams) > 0
	if !c.frames.pause || !c.frames.between() {
		return 0
	}
	for len(c.resets.streams) > 0 && len(p)-n >= headBytes+4 {
		s := c.resets.streams[0]
		c.resets.streams = c.resets.streams[1:]
		n += copy(p[n:], []byte{0, 0, 4, typeWindow, 0, byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s), 0, 0, 0, 0})
	}
	if len(c.resets.streams) == 0 {
		c.resets.streams, c.frames.pause = nil, false
		c.resets.any.Store(false)
		_ = c.SetReadDeadline(time.Time{}) // what is wrong with the connection, reading says
	}
	return n
}

// woken reports whether a wait has ended because of a reset, and lets the next one wait. A wait for headers that has taken as long as
// it may ends for good.
func (c *conn) woken(err error) bool {
	if timeout, is := errors.AsType[net.Error](err); !is || !timeout.Timeout() || c.hurried() {
		return false
	}
	c.resets.mu.Lock()
	defer c.resets.mu.Unlock()
	if len(c.resets.streams) == 0 {
		return false
	}
	_ = c.SetReadDeadline(time.Time{}) // what is wrong with the connection, reading says
	return true
}

// resetting reports whether the transport has not read the reset of a stream.
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
	c.resets.once.Do(func() { close(c.resets.gone) })
	return c.Conn.Close()
}

// Reset ends the call's stream at the transport, which drops its queue and sends RST_STREAM. The caller's library
// reports INTERNAL. It returns at once; a transport that cannot write, or a caller that stops in the middle of a frame, holds it
// up.
func (a *Arrival) Reset() { a.conn.reset(a.stream) }

// Resetting reports whether the transport has not read the stream's Reset.
func (a *Arrival) Resetting() bool { return a.conn.resetting(a.stream) }

// Writes returns a number that changes when the transport begins or ends a write of the call's connection. It is odd during one.
func (a *Arrival) Writes() uint64 { return a.conn.writes.Load() }

// Gone is closed when the call's connection is.
func (a *Arrival) Gone() <-chan struct{} { return a.conn.resets.gone }

// CloseConnection closes the call's connection under all its calls.
func (a *Arrival) CloseConnection() { _ = a.conn.Close() } // the transport notices
