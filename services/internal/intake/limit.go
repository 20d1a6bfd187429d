package intake

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// Why a connection is closed by a listener of Limit.
var (
	// ErrTooMany: its address has as many as may be.
	ErrTooMany = errors.New("its address has as many connections as it may")
	// ErrUnsettled: it has not become HTTP/2, many others have not either, and none is older of those of the address that has most.
	ErrUnsettled = errors.New("many connections do not become HTTP/2, and this is the oldest of the address with most of them")
)

// Limits bound a listener's connections.
type Limits struct {
	// PerAddress is how many one address may have; beyond it new ones are closed. 0: no bound. Unix sockets have no address.
	PerAddress int
	// Unsettled is how many may be that are not HTTP/2 yet; beyond it one of those is closed. 0: no bound.
	Unsettled int
	// Refused is told of each connection that is closed for a limit, or because of ErrSlowHeaders.
	Refused func(from net.Addr, why error)
}

// Limit bounds the connections that lis accepts.
func Limit(lis net.Listener, l Limits) net.Listener {
	return &limiter{Listener: lis, limits: l, of: map[netip.Addr]*origin{}}
}

// limiter is a listener with limits.
type limiter struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	of        map[netip.Addr]*origin // guarded by mu; addresses with a connection
	unsettled int                    // guarded by mu; connections that are not HTTP/2 yet
}

// origin is an address that has connections.
type origin struct {
	open      int       // connections
	unsettled list.List // of them: *accepted, the oldest first
}

// accepted is a connection with its place among those of its address.
type accepted struct {
	net.Conn
	from  netip.Addr
	owner *limiter

	place  *list.Element // guarded by owner.mu; among the unsettled ones; nil when it is not
	closed bool          // guarded by owner.mu
}

// Accept implements net.Listener. It gives a connection that is within the limits.
func (l *limiter) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		endUnanswered(conn)
		c, oldest := l.enter(conn)
		if oldest != nil {
			l.refuse(oldest, ErrUnsettled)
		}
		if c != nil {
			return c, nil
		}
		l.refuse(conn, ErrTooMany)
	}
}

// refuse closes a connection for a reason.
func (l *limiter) refuse(conn net.Conn, why error) {
	l.tell(conn, why)
	_ = conn.Close() // nobody is told
}

func (l *limiter) tell(conn net.Conn, why error) {
	if l.limits.Refused != nil {
		l.limits.Refused(conn.RemoteAddr(), why)
	}
}

// enter counts a connection, unless its address has too many, and takes out the one that is too many of those that are not settled.
func (l *limiter) enter(conn net.Conn) (c, oldest *accepted) {
	c = &accepted{Conn: conn, owner: l, from: addressOf(conn.RemoteAddr())}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.of[c.from]
	if at == nil {
		at = &origin{}
		l.of[c.from] = at
	}
	if l.limits.PerAddress > 0 && at.open >= l.limits.PerAddress && c.from.IsValid() {
		return nil, nil
	}
	at.open++
	if l.limits.Unsettled > 0 && l.unsettled >= l.limits.Unsettled {
		oldest = l.oldestLocked()
		l.settleLocked(oldest)
	}
	c.place = at.unsettled.PushBack(c)
	l.unsettled++
	return c, oldest
}

// oldestLocked is the oldest unsettled connection of the address that has most of them.
func (l *limiter) oldestLocked() *accepted {
	var most *origin
	for _, at := range l.of {
		if most == nil || at.unsettled.Len() > most.unsettled.Len() {
			most = at
		}
	}
	return most.unsettled.Front().Value.(*accepted)
}

// settleLocked takes a connection out of those that are not HTTP/2 yet.
func (l *limiter) settleLocked(c *accepted) {
	if c.place != nil {
		l.of[c.from].unsettled.Remove(c.place)
		c.place = nil
		l.unsettled--
	}
}

// settle: the connection is HTTP/2.
func (c *accepted) settle() {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.settleLocked(c)
}

// refused: the connection ends for a reason of this package.
func (c *accepted) refused(why error) { c.owner.tell(c, why) }

// Close implements net.Conn.
func (c *accepted) Close() error {
	c.owner.leave(c)
	return c.Conn.Close()
}

func (l *limiter) leave(c *accepted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	l.settleLocked(c)
	at := l.of[c.from]
	if at.open--; at.open == 0 {
		delete(l.of, c.from)
	}
}

// CloseWrite closes the side that sends, where the connection has sides.
func (c *accepted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// addressOf is the address without the port; that of IPv4 is one, however it is written. Not valid where there is none.
func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// SyscallConn is for who looks at what the operating system knows of the connection.
func (c *accepted) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errNoDescriptor
}
