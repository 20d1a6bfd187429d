package transport

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// A client learns why its certificate is refused when it has already sent more. If the server closed with that unread, the
// network would tell the client of a broken connection in the place of the reason.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// errNoDescriptor: a connection is none of the operating system's.
var errNoDescriptor = errors.New("connection has no descriptor")

// lingering is a connection that stays open when its handshake fails, until linger closes it.
type lingering struct {
	net.Conn
	done bool // the handshake succeeded: Close closes
}

func (l *lingering) Close() error {
	if !l.done {
		return nil
	}
	return l.Conn.Close()
}

// SyscallConn is for grpc-go, which shows what the operating system knows of a connection.
func (l *lingering) SyscallConn() (syscall.RawConn, error) {
	if c, ok := l.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errNoDescriptor
}

// linger closes the connection when the client has left, or has had its time.
func (l *lingering) linger() {
	if c, ok := l.Conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		discard(l.Conn)
	}
	_ = l.Conn.Close() // nobody is left to tell
}

// discard reads what a client sends still: whatever it is, nobody wants it.
func discard(conn net.Conn) {
	if conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, conn, lingerBytes)
	}
}
