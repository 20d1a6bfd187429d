package rpc_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc"
)

// TestServeNotifiesItsSupervisor expects what systemd expects with Type=notify: a datagram when
// calls are accepted, and one when no more are.
func TestServeNotifiesItsSupervisor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { require.NoError(t, supervisor.Close()) }()
	t.Setenv("NOTIFY_SOCKET", path)
	told := func() string {
		message := make([]byte, 100)
		n, err := supervisor.Read(message)
		require.NoError(t, err)
		return string(message[:n])
	}

	ctx, cancel := context.WithCancel(t.Context())
	lis, err := rpc.Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		served <- rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.NewNullLogger()).Serve(ctx, lis)
	}()
	require.Equal(t, "READY=1", told())
	cancel()
	require.Equal(t, "STOPPING=1", told())
	require.NoError(t, <-served)
}

func TestServeIgnoresAMissingSupervisor(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nowhere/socket")
	ctx, cancel := context.WithCancel(t.Context())
	lis, err := rpc.Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		served <- rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.NewNullLogger()).Serve(ctx, lis)
	}()
	cancel()
	require.NoError(t, <-served)
}
