package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxHandshakes bounds the handshakes that compute at the same time. A burst of them would
	// otherwise delay every stream's next token until all are done.
	maxHandshakes = 1
	// maxPause bounds the pause after a handshake, which is as long as the handshake computed. In a
	// process that always has something to compute, Go's runtime polls the network only every 10
	// ms. The pause lets streams run in between.
	maxPause = 5 * time.Millisecond
)

// handshakeConn is the connection of one handshake. It holds a slot while the handshake computes:
// from the client's first message until it waits for the next one. One goroutine uses it.
type handshakeConn struct {
	*lingeringConn
	slots    chan struct{} // semaphore of the handshakes that compute or pause
	acquired time.Time     // when the slot was acquired; zero: it holds none
}

// acquire waits for a slot, and lets runnable goroutines run first.
func (c *handshakeConn) acquire() {
	c.slots <- struct{}{}
	runtime.Gosched()
	c.acquired = time.Now()
}

// release frees the slot after a pause. It may be called twice.
func (c *handshakeConn) release() {
	if c.acquired.IsZero() {
		return
	}
	time.AfterFunc(min(time.Since(c.acquired), maxPause), func() { <-c.slots })
	c.acquired = time.Time{}
}

// Read releases the slot, because a handshake that waits for its client computes nothing.
func (c *handshakeConn) Read(p []byte) (int, error) {
	c.release()
	return c.lingeringConn.Read(p)
}

// A client may have sent more before it learns why its certificate is refused. If the server closed
// the connection with unread data, the client would get a connection reset and not the reason.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// errNoDescriptor reports a connection that has no file descriptor.
var errNoDescriptor = errors.New("connection has no descriptor")

// lingeringConn stays open when its handshake fails, until closeLater closes it.
type lingeringConn struct {
	net.Conn
	established bool // the handshake succeeded, so Close closes
}

func (l *lingeringConn) Close() error {
	if !l.established {
		return nil
	}
	return l.Conn.Close()
}

// SyscallConn implements syscall.Conn, from which grpc-go's channelz reads socket options.
func (l *lingeringConn) SyscallConn() (syscall.RawConn, error) {
	if c, ok := l.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errNoDescriptor
}

// closeLater closes the connection when the client has closed its side, or after lingerTime.
func (l *lingeringConn) closeLater() {
	if c, ok := l.Conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		drain(l.Conn)
	}
	_ = l.Conn.Close() // nothing handles the error
}

// drain reads and discards what the client still sends.
func drain(conn net.Conn) {
	if conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, conn, lingerBytes)
	}
}

// Linger makes the connections of a net/http server over TLS linger as those of a gRPC server do:
// if a configuration of this package refuses a handshake, the connection stays open for a moment so
// that the client can read the reason. The listener must be directly below TLS.
func Linger(lis net.Listener) net.Listener { return lingerListener{lis} }

type lingerListener struct{ net.Listener }

// Accept implements net.Listener.
func (l lingerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lingerOnClose{Conn: conn}, nil
}

// lingerOnClose is a connection whose Close waits for the client, once, if it is called between the
// start of a handshake and the acceptance of the client's certificate.
type lingerOnClose struct {
	net.Conn
	inHandshake atomic.Bool // a handshake has begun, and the client may be refused
}

// trackHandshake records that a handshake has begun, and makes cfg record that the client was
// accepted.
func trackHandshake(hello *tls.ClientHelloInfo, cfg *tls.Config) {
	if s, ok := hello.Conn.(*lingerOnClose); ok {
		s.inHandshake.Store(true)
		cfg.VerifyConnection = func(tls.ConnectionState) error {
			s.inHandshake.Store(false)
			return nil
		}
	}
}

func (s *lingerOnClose) Close() error {
	if s.inHandshake.Swap(false) {
		drain(s.Conn)
	}
	return s.Conn.Close()
}
