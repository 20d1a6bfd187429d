package rpc

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"

	"github.com/millrace/millrace/services/internal/version"
)

// Limits of every client connection.
const (
	// clientStreamWindow bounds what a token stream piles up behind a slow reader, and is the smallest that grpc-go
	// takes: some hundred tokens.
	clientStreamWindow = 64 << 10
	// clientConnWindow is shared by all streams; it is given back on arrival, whoever reads or does not.
	clientConnWindow = 4 << 20
	// clientWriteBuffer is what is written at once. It is taken while there is something to write.
	clientWriteBuffer = 128 << 10
	// clientMaxReceiveBytes bounds one response; large texts have large tokenisations.
	clientMaxReceiveBytes = 64 << 20
	// keepaliveTime is well above the pause that servers of this package ask for, and those of other makers that follow grpc-go.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// xdsScheme is that of targets whose servers a control plane tells.
const xdsScheme = "xds"

// Dial makes a connection to "host:port", "dns:///name:port" or "unix:PATH", and in programs that are built with -tags xds to
// "xds:///name"; it connects on first use. It is plaintext unless options have grpc.WithTransportCredentials.
// program and the version become the user agent. Proxies of the environment are not used and service configs of the
// resolver are ignored, but for those of a control plane, which is asked for nothing else: what the caller names is what is dialled.
// Close it.
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
		experimental.WithBufferPool(&pieces),
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
