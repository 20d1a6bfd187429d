package rpc

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// silent answers a generation when the test says so.
type silent struct {
	pb.UnimplementedInferenceServiceServer
	speak chan struct{}
}

func (s silent) Generate(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	select {
	case <-s.speak:
		return stream.Send(&pb.GenerateResponse{})
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// serveSilently serves with the given keepalives until the test ends.
func serveSilently(t *testing.T, lis net.Listener, k keepalives) silent {
	t.Helper()
	s := silent{speak: make(chan struct{})}
	server := NewServer(ServerConfig{Domain: WorkerDomain, Options: k.options()}, hclog.NewNullLogger())
	pb.RegisterInferenceServiceServer(server, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s
}

// listen listens on a loopback port.
func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	return lis
}

func TestSilentStreamSurvivesKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The shortest times that grpc-go accepts: 1 s for a server and 10 s for a client.
		const serverPing, clientPing = time.Second, 10 * time.Second
		lis := bufconn.Listen(64 << 10)
		s := serveSilently(t, lis, keepalives{Ping: serverPing, Timeout: serverPing, LeastPause: serverKeepalives.LeastPause})
		conn, err := Dial("passthrough:///bufconn", "test",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: serverPing}))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		stream, err := pb.NewInferenceServiceClient(conn).Generate(t.Context(), &pb.GenerateRequest{})
		require.NoError(t, err)
		time.Sleep(10 * clientPing) // the silence under test
		close(s.speak)
		_, err = stream.Recv()
		require.NoError(t, err)
	})
}

// pinger is a client without a library, which may ping at any time.
type pinger struct {
	*http2.Framer
	conn net.Conn
}

func newPinger(t *testing.T, address string) pinger {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	p := pinger{http2.NewFramer(conn, conn), conn}
	require.NoError(t, p.WriteSettings())
	return p
}

// ping pings once and reads until the answer. It returns false if the server closes the connection.
func (p pinger) ping(t *testing.T) bool {
	t.Helper()
	require.NoError(t, p.WritePing(false, [8]byte{}))
	for {
		frame, err := p.ReadFrame()
		require.NoError(t, err)
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return true
			}
		case *http2.GoAwayFrame:
			require.Equal(t, "too_many_pings", string(f.DebugData()))
			return false
		}
	}
}

func TestRegularPingsAreAllowed(t *testing.T) {
	t.Parallel()
	const pause = 50 * time.Millisecond
	lis := listen(t)
	serveSilently(t, lis, keepalives{Ping: time.Hour, Timeout: time.Hour, LeastPause: pause})
	p := newPinger(t, lis.Addr().String())
	for range 10 {
		require.True(t, p.ping(t))
		time.Sleep(2 * pause) // as a client with pings every 10 s does, where every 5 s is allowed
	}
	require.GreaterOrEqual(t, 10*time.Second, 2*serverKeepalives.LeastPause)
	require.GreaterOrEqual(t, keepaliveTime, 2*serverKeepalives.LeastPause)
}

func TestTooManyPingsCloseTheConnection(t *testing.T) {
	t.Parallel()
	lis := listen(t)
	serveSilently(t, lis, keepalives{Ping: time.Hour, Timeout: time.Hour, LeastPause: time.Hour})
	p := newPinger(t, lis.Addr().String())
	for range 10 {
		if !p.ping(t) {
			return
		}
	}
	require.FailNow(t, "ten pings at once were taken")
}
