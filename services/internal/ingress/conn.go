package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

// errNoDescriptor reports a connection that has no file descriptor.
var errNoDescriptor = errors.New("connection has no descriptor")

// sweepFrom is the number of streams from which conn looks for those of ended calls.
const sweepFrom = 64

// conn follows the frames of a connection while grpc-go reads it. Each Read ends where a header
// block ends, so that the block that grpc-go begins a call for is always the last one that was
// read. One goroutine reads and calls Tap.
type conn struct {
	net.Conn
	ready        *readiness // nil: a read holds a buffer while it waits
	parser       frameParser
	lastStream   uint32 // the stream whose headers were read last
	lastEnded    bool   // that stream has no body
	streams      map[uint32]*Stream
	sweepAt      int
	buffered     []byte      // read from the inner connection and not yet returned
	bufferedErr  error       // the error that came with buffered
	onFirstFrame func()      // called when the client's first frame has arrived, then nil
	headersSince time.Time   // when the unfinished header block began; zero: none is unfinished
	onRefused    func(error) // reports why this package ends the connection
	resets       resets
	writes       atomic.Uint64 // counts the beginnings and ends of writes; one goroutine writes
}

// watch returns a conn on inner. plain reports that inner is not encrypted, so that its descriptor
// can be read directly.
func watch(inner net.Conn, plain bool, onFirstFrame func(), onRefused func(error)) *conn {
	c := &conn{Conn: inner, streams: map[uint32]*Stream{}, sweepAt: sweepFrom, onFirstFrame: onFirstFrame, onRefused: onRefused}
	c.resets.closed = make(chan struct{})
	c.parser.sink = c
	if plain {
		c.ready = readinessOf(inner)
	}
	return c
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.resets.pending.Load() {
			if n := c.inject(p); n > 0 {
				return n, nil
			}
		}
		if len(c.buffered) > 0 || c.bufferedErr != nil {
			return c.readBuffered(p)
		}
		c.setHeadersDeadline()
		n, err := c.Conn.Read(p)
		if n == 0 && c.wokenByReset(err) {
			continue
		}
		return c.follow(p[:n], c.readError(err))
	}
}

// ReadOnReady lets grpc-go wait for data without holding a buffer.
func (c *conn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if c.ready != nil && len(c.buffered) == 0 && c.bufferedErr == nil && !c.resets.pending.Load() {
		c.setHeadersDeadline()
		b, n, err := c.ready.read(size, pool)
		switch {
		case b != nil:
			n, err = c.follow((*b)[:n], nil)
			return b, n, err
		case !c.wokenByReset(err):
			return nil, 0, c.readError(err)
		}
	}
	b := pool.Get(size)
	n, err := c.Read(*b)
	if n == 0 && err != nil {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err
}

// follow parses what was read. It keeps the bytes after a header block for the next Read.
func (c *conn) follow(read []byte, err error) (int, error) {
	n := c.scan(read)
	if c.onFirstFrame != nil && c.parser.sawFrame() {
		c.onFirstFrame()
		c.onFirstFrame = nil
	}
	if n < len(read) {
		c.buffered, c.bufferedErr = append([]byte(nil), read[n:]...), err
		return n, nil
	}
	return n, err
}

// readBuffered returns bytes that follow kept.
func (c *conn) readBuffered(p []byte) (int, error) {
	if len(c.buffered) == 0 {
		return 0, c.bufferedErr
	}
	n := min(len(p), len(c.buffered))
	n = c.scan(c.buffered[:n])
	copy(p, c.buffered[:n])
	if c.buffered = c.buffered[n:]; len(c.buffered) == 0 {
		c.buffered = nil
	}
	return n, nil
}

func (c *conn) bodyData(stream uint32, part []byte) {
	if a := c.streams[stream]; a != nil {
		a.addData(part)
	}
}

func (c *conn) frameEnd(stream uint32) {
	if a := c.streams[stream]; a != nil {
		a.endFrame()
	}
}

func (c *conn) streamEnded(stream uint32) {
	if a := c.streams[stream]; a != nil {
		delete(c.streams, stream)
		a.end()
	}
}

func (c *conn) headersEnd(stream uint32, closed bool) { c.lastStream, c.lastEnded = stream, closed }

// openStream returns the Stream of the call whose headers were read last.
func (c *conn) openStream(done <-chan struct{}) *Stream {
	a := &Stream{done: done, ended: c.lastEnded, conn: c, stream: c.lastStream}
	if a.ended {
		return a
	}
	// drop calls that the server has ended: their clients may never send an end
	if len(c.streams) >= c.sweepAt {
		for stream, a := range c.streams {
			if a.callEnded() {
				delete(c.streams, stream)
			}
		}
		c.sweepAt = max(sweepFrom, 2*len(c.streams))
	}
	c.streams[c.lastStream] = a
	return a
}

// address is the local address of a connection. It leads from a call's context to the conn.
type address struct {
	net.Addr
	conn *conn
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return address{c.Conn.LocalAddr(), c} }

// SyscallConn implements syscall.Conn, from which grpc-go's channelz reads socket options.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errNoDescriptor
}

// From returns the address of a call's peer without the port. It is invalid if the peer has none.
func From(ctx context.Context) netip.Addr {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return addressOf(from.Addr)
}

// Tap puts the call's Stream into its context. It is a grpc.InTapHandle.
func Tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	at, ok := from.LocalAddr.(address)
	if !ok {
		return ctx, nil
	}
	return context.WithValue(ctx, streamKey{}, at.conn.openStream(ctx.Done())), nil
}

var (
	_ sink      = (*conn)(nil)
	_ io.Reader = (*conn)(nil)
)
