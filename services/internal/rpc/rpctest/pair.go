package rpctest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/services/internal/rpc"
)

// stopTimeout is a hang guard: a test whose server does not stop fails.
const stopTimeout = time.Minute

// Listener returns an in-memory listener that is closed when the test ends.
func Listener(t testing.TB) *bufconn.Listener {
	t.Helper()
	lis := bufconn.Listen(256 << 10)
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// Dial connects to a Listener like rpc.Dial. The connection is closed when the test ends.
func Dial(t testing.TB, lis *bufconn.Listener, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append([]grpc.DialOption{Dialer(lis)}, options...)
	conn, err := rpc.Dial("passthrough:///bufconn", "rpctest", options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Dialer is a dial option that connects to lis whatever the target.
func Dialer(lis *bufconn.Listener) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// Serve runs server on lis. stop ends it as a signal ends a program, and waits for it. It runs when
// the test ends if it was not called before.
func Serve(t testing.TB, server *rpc.Server, lis net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(stopTimeout):
			require.FailNow(t, "the server did not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// Pair serves what register registers on a server of package rpc over memory, and returns a
// connection to it.
func Pair(t testing.TB, cfg rpc.ServerConfig, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	if cfg.Domain == "" {
		cfg.Domain = rpc.WorkerDomain
	}
	server := rpc.NewServer(cfg, Logger(t))
	register(server)
	lis := Listener(t)
	Serve(t, server, lis)
	return Dial(t, lis)
}
