package ingress_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/services/internal/ingress"
)

func TestLostProbeDoesNotResetSilentStream(t *testing.T) {
	// An unanswered probe resets a connection that was silent for TCP_USER_TIMEOUT, so several probes
	// must come before that.
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lis = ingress.Limit(lis, ingress.Limits{})
	defer func() { require.NoError(t, lis.Close()) }()
	var d net.Dialer
	client, err := d.DialContext(t.Context(), "tcp", lis.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	conn, err := lis.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	raw, err := conn.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	option := func(name int) (value int) {
		require.NoError(t, raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }))
		require.NoError(t, err)
		return value
	}
	probes := (option(unix.TCP_USER_TIMEOUT)/1000 - option(unix.TCP_KEEPIDLE)) / option(unix.TCP_KEEPINTVL)
	require.GreaterOrEqual(t, probes, 4)
}
