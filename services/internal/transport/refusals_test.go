package transport_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

func TestRefusedConnectionsAreCounted(t *testing.T) {
	ca := certstest.New(t)
	own, client := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1")), certstest.Save(t, ca.Issue(t, "dns:a"))
	cfg := rpc.ServerConfig{Domain: rpc.WorkerDomain}
	flags := transport.Flags{Cert: own.Cert, Key: own.Key, ClientCA: ca.File, MaxConnections: 2}
	require.NoError(t, flags.Serve(&cfg, rpctest.Logger(t)))
	server := rpc.NewServer(cfg, rpctest.Logger(t))
	lis, err := rpc.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	rpctest.Serve(t, server, lis)
	address := lis.Addr().String()
	counted := func(handshake, address uint64) func() bool {
		return func() bool {
			return server.RefusedConnections(rpc.CauseHandshake) == handshake && server.RefusedConnections(rpc.CauseAddress) == address
		}
	}
	plain := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		return conn
	}

	require.NoError(t, plain().Close(), "a probe of the port")
	good := dial(t, address, transport.Flags{CA: ca.File, Cert: client.Cert, Key: client.Key})
	require.NoError(t, ask(t, good))
	require.True(t, counted(0, 0)())

	require.Error(t, ask(t, dial(t, address, transport.Flags{CA: ca.File})))
	require.Eventually(t, counted(1, 0), hang, time.Millisecond)

	second := plain() // together with the good one, the maximum
	require.Eventually(t, func() bool {
		third := plain()
		defer func() { _ = third.Close() }()
		_, err := third.Read(make([]byte, 1))
		return err != nil && server.RefusedConnections(rpc.CauseAddress) > 0
	}, hang, time.Millisecond)
	require.NoError(t, second.Close())
	require.EqualValues(t, 1, server.RefusedConnections(rpc.CauseHandshake))
	require.Zero(t, server.RefusedConnections("made up"))
	require.NoError(t, ask(t, good))
}
