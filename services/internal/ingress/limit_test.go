package ingress

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const hang = time.Minute

// limited is a loopback listener with limits. It keeps the reasons of the connections that it
// closed.
type limited struct {
	net.Listener
	accepted chan *accepted

	mu     sync.Mutex
	closed []error
}

func listen(t *testing.T, limits Limits) *limited {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &limited{accepted: make(chan *accepted, 64)}
	limits.Refused = func(_ net.Addr, why error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = append(l.closed, why)
	}
	l.Listener = Limit(raw, limits)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The connections stay reachable until the listener is closed: the garbage collector closes
		// the socket of one that is not.
		var conns []*accepted
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			c := conn.(*accepted)
			conns = append(conns, c)
			l.accepted <- c
		}
		for _, c := range conns {
			_ = c.Close() // the test may have closed it
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l
}

func (l *limited) refusals() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]error(nil), l.closed...)
}

// connect opens a connection from a loopback address.
func connect(t *testing.T, to *limited, from string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: hang, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(t.Context(), "tcp", to.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// isClosed requires that the other side has closed.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(hang)))
	_, err := conn.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.EOF) || err != nil && !errors.Is(err, net.ErrClosed) && !isTimeout(err), "%v", err)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func TestLimitBoundsConnectionsPerAddress(t *testing.T) {
	l := listen(t, Limits{PerAddress: 2})
	connect(t, l, "127.0.0.1")
	second := connect(t, l, "127.0.0.1")
	first := <-l.accepted
	<-l.accepted
	isClosed(t, connect(t, l, "127.0.0.1"))
	require.Equal(t, []error{ErrAddressLimit}, l.refusals())
	connect(t, l, "127.0.0.2")
	(<-l.accepted).markHTTP2()
	require.NoError(t, first.Close())
	require.Error(t, first.Close(), "closing twice frees one place")
	connect(t, l, "127.0.0.1")
	<-l.accepted
	isClosed(t, connect(t, l, "127.0.0.1"))
	require.NoError(t, second.Close())
}

func TestLimitClosesTheOldestPendingConnection(t *testing.T) {
	// Too many connections have not sent a frame: the oldest of the address that has most of them
	// is closed.
	l := listen(t, Limits{Pending: 3})
	good := connect(t, l, "127.0.0.2")
	<-l.accepted
	silent := connect(t, l, "127.0.0.1")
	<-l.accepted
	settled := connect(t, l, "127.0.0.1")
	(<-l.accepted).markHTTP2()
	connect(t, l, "127.0.0.1")
	<-l.accepted
	connect(t, l, "127.0.0.1")
	last := <-l.accepted
	isClosed(t, silent)
	require.Equal(t, []error{ErrPendingLimit}, l.refusals())
	require.NoError(t, last.Close(), "who leaves makes room")
	connect(t, l, "127.0.0.2")
	<-l.accepted
	require.Len(t, l.refusals(), 1)
	for _, open := range []net.Conn{good, settled} {
		require.NoError(t, open.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err := open.Read(make([]byte, 1))
		require.True(t, isTimeout(err), "it is open: %v", err)
	}
}

func TestZeroLimitsBoundNothing(t *testing.T) {
	l := listen(t, Limits{})
	for range 20 {
		connect(t, l, "127.0.0.1")
		<-l.accepted
	}
	require.Empty(t, l.refusals())
}
