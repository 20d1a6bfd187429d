package transport_test

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

func TestRefusedConnectionIsClosedAtLast(t *testing.T) {
	ca := certstest.New(t)
	server := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	address, log := serve(t, transport.Flags{Cert: server.Cert, Key: server.Key, ClientCA: ca.File})
	for name, speak := range map[string]func(net.Conn) error{
		"without a certificate": func(conn net.Conn) error {
			return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(t.Context())
		},
		"no TLS": func(conn net.Conn) error {
			_, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			return err
		},
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, speak(conn), "%s: who is refused learns it later", name)
		require.Eventually(t, func() bool {
			_, err := conn.Write([]byte("more"))
			return err != nil
		}, hang, 20*time.Millisecond, name)
		require.NoError(t, conn.Close())
	}
	require.Len(t, log.with("connection refused"), 2)
}

func TestUnixSocketsMayUseTLS(t *testing.T) {
	ca := certstest.New(t)
	server, client := certstest.Save(t, ca.Issue(t, "dns:localhost")), certstest.Save(t, ca.Issue(t, "dns:a"))
	cfg := rpc.ServerConfig{Domain: rpc.WorkerDomain}
	flags := transport.Flags{Cert: server.Cert, Key: server.Key, ClientCA: ca.File}
	require.NoError(t, flags.Serve(&cfg, rpctest.Logger(t)))
	address := "unix:" + filepath.Join(t.TempDir(), "s")
	lis, err := rpc.Listen(t.Context(), address)
	require.NoError(t, err)
	rpctest.Serve(t, rpc.NewServer(cfg, rpctest.Logger(t)), lis)
	require.NoError(t, ask(t, dial(t, address, transport.Flags{CA: ca.File, Cert: client.Cert, Key: client.Key})))
	require.Error(t, ask(t, dial(t, address, transport.Flags{CA: ca.File})))
}
