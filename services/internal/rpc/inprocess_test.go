package rpc_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// refusing are credentials that refuse every client.
type refusing struct {
	credentials.TransportCredentials
}

func (refusing) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("nobody is let in")
}

func (refusing) Info() credentials.ProtocolInfo            { return credentials.ProtocolInfo{} }
func (r refusing) Clone() credentials.TransportCredentials { return r }
func (refusing) OverrideServerName(string) error           { return nil }

func ask(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestInProcessConnNeedsNoCredentials(t *testing.T) {
	// Its calls pass through the chain like all others.
	for name, creds := range map[string]credentials.TransportCredentials{"a server with credentials": refusing{}, "one without": nil} {
		t.Run(name, func(t *testing.T) {
			rpctest.NoLeaks(t)
			within := make(chan bool, 1)
			s := rpc.NewServer(rpc.ServerConfig{
				Domain: rpc.SchedulerDomain, Credentials: creds,
				Interceptors: []grpc.StreamServerInterceptor{
					func(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
						require.NotEmpty(t, rpc.RequestID(stream.Context()), "the chain's own come before")
						within <- rpc.IsInProcess(stream.Context())
						return next(impl, stream)
					},
				},
			}, rpctest.Logger(t))
			conn, err := s.InProcessConn("test")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })
			lis := rpctest.Listener(t)
			stop := rpctest.Serve(t, s, lis)
			require.NoError(t, ask(t.Context(), conn))
			require.True(t, <-within)

			err = ask(t.Context(), rpctest.Dial(t, lis))
			if creds == nil {
				require.NoError(t, err)
				require.False(t, <-within, "it came over the listener")
			} else {
				require.Equal(t, codes.Unavailable, status.Code(err), "the credentials are asked for on every other connection")
			}
			stop()
			require.Equal(t, codes.Unavailable, status.Code(ask(t.Context(), conn)), "it ends with the server")
		})
	}
	require.False(t, rpc.IsInProcess(t.Context()))
}
