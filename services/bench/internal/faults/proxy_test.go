package faults

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

const hang = 2 * time.Minute // a guard

// proxied returns a proxy and the listener of its socket.
func proxied(t *testing.T) (*proxy, *net.UnixListener) {
	t.Helper()
	dir, err := os.MkdirTemp("", "p") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	require.NoError(t, err)
	require.NoError(t, lis.SetDeadline(time.Now().Add(hang)))
	t.Cleanup(func() { _ = lis.Close() }) // some tests close it themselves
	p, err := newProxy(t.Context(), lis.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	return p, lis
}

// pair returns both ends of a connection through the proxy.
func pair(t *testing.T, p *proxy, lis *net.UnixListener) (near, far net.Conn) {
	t.Helper()
	near, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() }) // some tests close it themselves
	far, err = lis.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() }) // as above
	for _, c := range []net.Conn{near, far} {
		require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	}
	return near, far
}

func send(t *testing.T, to net.Conn, text string) {
	t.Helper()
	_, err := to.Write([]byte(text))
	require.NoError(t, err)
}

func read(t *testing.T, from net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(from, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func TestProxyForwardsBytesAndEnds(t *testing.T) {
	rpctest.NoLeaks(t)
	p, lis := proxied(t)
	near, far := pair(t, p, lis)
	send(t, near, "there")
	read(t, far, "there")
	send(t, far, "and back")
	require.NoError(t, far.Close())
	read(t, near, "and back")
	_, err := near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestProxyHoldsEverythingWhileCut(t *testing.T) {
	rpctest.NoLeaks(t)
	p, lis := proxied(t)
	near, far := pair(t, p, lis)
	other, gone := pair(t, p, lis)
	send(t, near, "before")
	read(t, far, "before")
	p.Cut()
	p.Cut() // again is nothing new
	send(t, near, "held")
	send(t, far, "held too")
	require.NoError(t, gone.Close())
	late, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, late.Close()) })
	for _, c := range []net.Conn{near, far, other, late} {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "neither bytes nor an end")
		require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	}
	p.Heal()
	p.Heal()
	read(t, far, "held")
	read(t, near, "held too")
	_, err = other.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	last, err := lis.Accept()
	require.NoError(t, err, "a connection made during the cut is accepted")
	require.NoError(t, last.Close())
}

func TestProxyResetsWithoutAListener(t *testing.T) {
	rpctest.NoLeaks(t)
	p, lis := proxied(t)
	require.NoError(t, lis.Close())
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address())
	if err == nil {
		require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, c.Close())
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestProxyClosesWhileCut(t *testing.T) {
	rpctest.NoLeaks(t)
	p, lis := proxied(t)
	near, _ := pair(t, p, lis)
	p.Cut()
	send(t, near, "held for ever")
}
