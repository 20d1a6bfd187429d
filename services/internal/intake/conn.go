package intake

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

// errNoDescriptor: a connection is none of the operating system's.
var errNoDescriptor = errors.New("connection has no descriptor")

// sweepFrom is how many arrivals a connection has before those of ended calls are looked for.
const sweepFrom = 64

// conn is a connection whose frames are followed as they are read. What it reads ends with every block of headers: when grpc-go
// begins the call of a block, that is the last one that has been read. One goroutine reads, and calls Tap.
type conn struct {
	net.Conn
	ready    *readiness // nil: reading keeps a buffer while it waits
	frames   frames
	last     uint32 // the stream whose headers came last
	closed   bool   // nothing follows those
	arrivals map[uint32]*Arrival
	sweepAt  int
	rest     []byte      // read from the connection and not from here
	err      error       // that came with rest
	settled  func()      // called when the client has shown that it speaks HTTP/2; nil when it was
	begun    time.Time   // when the block of headers began that comes; zero: none does
	refused  func(error) // is told why the connection ends that the client does not end
	resets   resets
	writes   atomic.Uint64 // begun and ended; one goroutine writes
}

// watch follows what is read from a connection. plain is whether that is what the operating system reads.
func watch(inner net.Conn, plain bool, settled func(), refused func(error)) *conn {
	c := &conn{Conn: inner, arrivals: map[uint32]*Arrival{}, sweepAt: sweepFrom, settled: settled, refused: refused}
	c.resets.gone = make(chan struct{})
	c.frames.to = c
	if plain {
		c.ready = readinessOf(inner)
	}
	return c
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.resets.any.Load() {
			if n := c.inject(p); n > 0 {
				return n, nil
			}
		}
		if len(c.rest) > 0 || c.err != nil {
			return c.again(p)
		}
		c.hurry()
		n, err := c.Conn.Read(p)
		if n == 0 && c.woken(err) {
			continue
		}
		return c.take(p[:n], c.late(err))
	}
}

// ReadOnReady lets grpc-go wait for what comes without a buffer for it.
func (c *conn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if c.ready != nil && len(c.rest) == 0 && c.err == nil && !c.resets.any.Load() {
		c.hurry()
		b, n, err := c.ready.read(size, pool)
		switch {
		case b != nil:
			n, err = c.take((*b)[:n], nil)
			return b, n, err
		case !c.woken(err):
			return nil, 0, c.late(err)
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

// take follows what was read, and keeps what comes behind a block of headers.
func (c *conn) take(read []byte, err error) (int, error) {
	n := c.scan(read)
	if c.settled != nil && c.frames.settled() {
		c.settled()
		c.settled = nil
	}
	if n < len(read) {
		c.rest, c.err = append([]byte(nil), read[n:]...), err
		return n, nil
	}
	return n, err
}

// again reads what was kept.
func (c *conn) again(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, c.err
	}
	n := min(len(p), len(c.rest))
	n = c.scan(c.rest[:n])
	copy(p, c.rest[:n])
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

func (c *conn) data(stream uint32, part []byte) {
	if a := c.arrivals[stream]; a != nil {
		a.data(part)
	}
}

func (c *conn) frame(stream uint32) {
	if a := c.arrivals[stream]; a != nil {
		a.frame()
	}
}

func (c *conn) ended(stream uint32) {
	if a := c.arrivals[stream]; a != nil {
		delete(c.arrivals, stream)
		a.end()
	}
}

func (c *conn) opened(stream uint32, closed bool) { c.last, c.closed = stream, closed }

// open makes the arrival of the stream whose headers came last.
func (c *conn) open(done <-chan struct{}) *Arrival {
	a := &Arrival{done: done, ended: c.closed, conn: c, stream: c.last}
	if a.ended {
		return a
	}
	if len(c.arrivals) >= c.sweepAt { // calls that the server has ended: their senders may never say more
		for stream, a := range c.arrivals {
			if a.over() {
				delete(c.arrivals, stream)
			}
		}
		c.sweepAt = max(sweepFrom, 2*len(c.arrivals))
	}
	c.arrivals[c.last] = a
	return a
}

// address is where a connection was accepted, and the way from a call's context to its connection.
type address struct {
	net.Addr
	conn *conn
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return address{c.Conn.LocalAddr(), c} }

// SyscallConn is for grpc-go, which shows what the operating system knows of a connection.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errNoDescriptor
}

// From is the address of who makes a call, without the port; not valid where there is none.
func From(ctx context.Context) netip.Addr {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return addressOf(from.Addr)
}

// Tap gives each call's context its Arrival: grpc.InTapHandle.
func Tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	at, ok := from.LocalAddr.(address)
	if !ok {
		return ctx, nil
	}
	return context.WithValue(ctx, arrivalKey{}, at.conn.open(ctx.Done())), nil
}

var (
	_ sink      = (*conn)(nil)
	_ io.Reader = (*conn)(nil)
)
