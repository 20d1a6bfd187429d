package ingress

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Reasons for which Limit closes a connection.
var (
	// ErrAddressLimit: the address has as many connections as it may.
	ErrAddressLimit = errors.New("its address has as many connections as it may")
	// ErrPendingLimit: too many connections have not sent an HTTP/2 frame. The oldest pending one
	// of the address that has most is closed.
	ErrPendingLimit = errors.New("too many connections have not sent an HTTP/2 frame, and this is the oldest of the address that has most of them")
)

// Limits bound a listener's connections.
type Limits struct {
	// PerAddress bounds the connections of one address. Further ones are closed. 0: no bound. Unix
	// sockets have no address.
	PerAddress int
	// Pending bounds the connections that have not sent an HTTP/2 frame. Beyond it the oldest of
	// the address that has most is closed. 0: no bound.
	Pending int
	// Refused is called for each connection that is closed for a limit or for ErrSlowHeaders.
	Refused func(from net.Addr, why error)
}

// Limit returns a listener that applies limits to the connections of lis.
func Limit(lis net.Listener, l Limits) net.Listener {
	return &limiter{Listener: lis, limits: l, origins: map[netip.Addr]*origin{}}
}

// limiter is a listener with limits.
type limiter struct {
	net.Listener
	limits Limits

	mu      sync.Mutex
	origins map[netip.Addr]*origin // guarded by mu; addresses that have a connection
	pending int                    // guarded by mu; connections that have not sent an HTTP/2 frame
}

// origin holds the connections of one address.
type origin struct {
	open    int       // number of connections
	pending list.List // the pending ones, *accepted, oldest first
}

// accepted is a connection that its limiter counts.
type accepted struct {
	net.Conn
	from  netip.Addr
	owner *limiter

	// guarded by owner.mu; its element in origin.pending, nil if it is not pending
	element *list.Element
	closed  bool // guarded by owner.mu
}

// Accept implements net.Listener. It returns the next connection within the limits.
func (l *limiter) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		setAckTimeout(conn)
		c, oldest := l.admit(conn)
		if oldest != nil {
			l.refuse(oldest, ErrPendingLimit)
		}
		if c != nil {
			return c, nil
		}
		l.refuse(conn, ErrAddressLimit)
	}
}

// refuse reports and closes a connection.
func (l *limiter) refuse(conn net.Conn, why error) {
	l.notify(conn, why)
	_ = conn.Close() // nothing handles the error
}

func (l *limiter) notify(conn net.Conn, why error) {
	if l.limits.Refused != nil {
		l.limits.Refused(conn.RemoteAddr(), why)
	}
}

// admit counts a connection. c is nil if its address has too many. oldest is a pending connection
// that must be closed, or nil.
func (l *limiter) admit(conn net.Conn) (c, oldest *accepted) {
	c = &accepted{Conn: conn, owner: l, from: addressOf(conn.RemoteAddr())}
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.origins[c.from]
	if o == nil {
		o = &origin{}
		l.origins[c.from] = o
	}
	if l.limits.PerAddress > 0 && o.open >= l.limits.PerAddress && c.from.IsValid() {
		return nil, nil
	}
	o.open++
	if l.limits.Pending > 0 && l.pending >= l.limits.Pending {
		oldest = l.oldestPendingLocked()
		l.removePendingLocked(oldest)
	}
	c.element = o.pending.PushBack(c)
	l.pending++
	return c, oldest
}

// oldestPendingLocked returns the oldest pending connection of the address that has most of them.
func (l *limiter) oldestPendingLocked() *accepted {
	var most *origin
	for _, o := range l.origins {
		if most == nil || o.pending.Len() > most.pending.Len() {
			most = o
		}
	}
	return most.pending.Front().Value.(*accepted)
}

// removePendingLocked removes a connection from the pending ones.
func (l *limiter) removePendingLocked(c *accepted) {
	if c.element != nil {
		l.origins[c.from].pending.Remove(c.element)
		c.element = nil
		l.pending--
	}
}

// markHTTP2 records that the connection speaks HTTP/2.
func (c *accepted) markHTTP2() {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.removePendingLocked(c)
}

// notifyRefused reports that this package ends the connection.
func (c *accepted) notifyRefused(why error) { c.owner.notify(c, why) }

// Close implements net.Conn.
func (c *accepted) Close() error {
	c.owner.remove(c)
	return c.Conn.Close()
}

func (l *limiter) remove(c *accepted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	l.removePendingLocked(c)
	o := l.origins[c.from]
	if o.open--; o.open == 0 {
		delete(l.origins, c.from)
	}
}

// CloseWrite closes the sending side if the connection has one.
func (c *accepted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// addressOf returns the address without port and zone, an IPv4 address always in its short form. It
// is invalid for other networks.
func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// SyscallConn implements syscall.Conn.
func (c *accepted) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errNoDescriptor
}

// ackTimeout bounds how long sent data may stay unacknowledged before the kernel closes the
// connection (TCP_USER_TIMEOUT). grpc-go sets it only on a *net.TCPConn, which an accepted is not.
const ackTimeout = 10 * time.Second

// Keepalive probes of a silent connection. With TCP_USER_TIMEOUT the kernel resets it as soon as it
// was silent for ackTimeout and the last probe is unanswered. Go's default, 15 s between probes, would
// reset a stream that waits for its first token when a single probe is lost; with these times four in
// a row must be.
const (
	keepIdle     = 6 * time.Second
	keepInterval = time.Second
)

// setAckTimeout sets the options on a TCP connection.
func setAckTimeout(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // the connection is closed
	}
	_ = raw.Control(func(fd uintptr) { // a closed connection needs no timeout
		_ = unix.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
		_ = unix.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepIdle.Seconds()))
		_ = unix.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepInterval.Seconds()))
	})
}
