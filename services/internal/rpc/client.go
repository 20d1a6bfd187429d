package rpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"

	"github.com/millrace/millrace/services/internal/version"
)

// Limits of every client connection.
const (
	// clientStreamWindow bounds the tokens that a slow reader lets accumulate. It is the smallest
	// window that grpc-go accepts: some hundred tokens.
	clientStreamWindow = 64 << 10
	// clientConnWindow is shared by all streams. It is credited when data arrive, whether or not
	// they are read.
	clientConnWindow = 4 << 20
	// clientWriteBuffer is the size of one write. The buffer is held only while there is something
	// to write.
	clientWriteBuffer = 128 << 10
	// clientMaxReceiveBytes bounds one response. Large texts have large tokenizations.
	clientMaxReceiveBytes = 64 << 20
	// keepaliveTime is well above the pause between pings that servers of this package, and others
	// that follow grpc-go, require.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// xdsScheme is the scheme of targets whose servers a control plane provides.
const xdsScheme = "xds"

// Dial returns a connection to "host:port", "dns:///name:port" or "unix:PATH", and in programs
// built with -tags xds to "xds:///name". It connects on first use. It is plaintext unless options
// have grpc.WithTransportCredentials. The user agent consists of program and version.
//
// Proxies of the environment are not used. Service configs are ignored unless they come from a
// control plane. So the target is exactly what the caller names. The caller must close the
// connection.
func Dial(target, program string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	controlled := strings.HasPrefix(target, xdsScheme+":")
	if controlled && resolver.Get(xdsScheme) == nil {
		return nil, fmt.Errorf("dial %s: this program was built without xDS: build it with make build TAGS=xds, or name servers by dns:///name:port", target)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(program + "/" + version.String()),
		grpc.WithNoProxy(),
		grpc.WithStaticStreamWindowSize(clientStreamWindow),
		grpc.WithStaticConnWindowSize(clientConnWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(clientMaxReceiveBytes)),
		experimental.WithBufferPool(&buffers),
		grpc.WithWriteBufferSize(clientWriteBuffer),
	}
	if !controlled {
		all = append(all, grpc.WithDisableServiceConfig())
	}
	conn, err := grpc.NewClient(target, append(all, options...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

// CheckHealth returns nil if the server at target reports SERVING. Options are those of Dial.
func CheckHealth(ctx context.Context, target, program string, options ...grpc.DialOption) error {
	conn, err := Dial(target, program, options...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // fails only if closed twice
	out, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("check health of %s: %w", target, err)
	}
	if out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("server at %s is %s", target, out.GetStatus())
	}
	return nil
}

// ConnectionError returns the cause in the message with which grpc-go reports a failed connection:
//
//	connection error: desc = "transport: ...: dial tcp 10.0.0.7:7071: connect: connection refused"
//
// becomes "dial tcp 10.0.0.7:7071: connect: connection refused". It returns false for any other
// message.
func ConnectionError(message string) (cause string, ok bool) {
	quoted, ok := strings.CutPrefix(message, "connection error: desc = ")
	if !ok {
		return "", false
	}
	cause, err := strconv.Unquote(quoted)
	if err != nil { // the message was clipped
		cause = strings.Trim(quoted, `"`)
	}
	cause = strings.TrimPrefix(cause, "transport: ")
	if _, dial, found := strings.Cut(cause, ": dial "); found {
		cause = "dial " + dial
	}
	return cause, true
}
