package target

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// scheme is the scheme of several servers that are listed.
const scheme = "millrace-gateway"

// serviceConfig spreads calls over the connected servers, and repeats a call that a server refuses
// with UNAVAILABLE. Servers send their headers with the first event, so that grpc-go repeats no
// call of which something was received. Embed, Rerank, Tokenize, Detokenize and ListModels change nothing.
// A server that stops closes its connections. grpc-go's health checks are not used, because they
// need a token where servers have keys.
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{
		"name": [{"service": "millrace.v1.InferenceService"}, {"service": "millrace.v1.ModelService", "method": "ListModels"}],
		"retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 4,
			"retryableStatusCodes": ["UNAVAILABLE"]}
	}]
}`

// maxRetryBytes bounds the requests that are kept for a repetition: a larger one is not repeated.
const maxRetryBytes = 16 << 20

// Client calls the servers. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	health  healthpb.HealthClient
	infer   pb.InferenceServiceClient
	models  pb.ModelServiceClient
	tenants tenants
	pieces  pieceCache
	kept    atomic.Int64 // bytes of requests that may have to be continued

	ready struct {
		sync.Mutex
		at  time.Time // of the last check
		err error     // its result
	}
}

// CheckTargets refuses a list of servers that Open would refuse.
func CheckTargets(targets []string) error {
	if len(targets) == 0 {
		return fmt.Errorf("names no server: give at least one host:port, unix:PATH or dns:///name:port")
	}
	for _, t := range targets {
		_, _, err := net.SplitHostPort(t)
		switch {
		case strings.HasPrefix(t, "unix:"):
		case strings.Contains(t, "://") && len(targets) > 1:
			return fmt.Errorf("%q: stands for several servers itself: give it alone", t)
		case strings.Contains(t, "://"):
		case err != nil:
			return fmt.Errorf("%q: want host:port, unix:PATH or dns:///name:port", t)
		}
	}
	return nil
}

// Open makes a connection to servers, as Dial of package rpc makes one. It connects in the
// background. The caller must Close the Client.
func Open(targets []string, program string, options ...grpc.DialOption) (*Client, error) {
	if err := CheckTargets(targets); err != nil {
		return nil, err
	}
	name := targets[0]
	options = append(options,
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(maxRetryBytes)),
		grpc.WithIdleTimeout(0), // so that readiness is known without calls
	)
	if !strings.Contains(name, "://") {
		list := manual.NewBuilderWithScheme(scheme)
		var all []resolver.Address
		for _, t := range targets {
			host, _, _ := net.SplitHostPort(t)
			// Each server's certificate is checked against its own name.
			all = append(all, resolver.Address{Addr: t, ServerName: host})
		}
		list.InitialState(resolver.State{Addresses: all})
		name = scheme + ":///servers"
		options = append(options, grpc.WithResolvers(list))
	}
	conn, err := rpc.Dial(name, program, options...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return New(conn), nil
}

// New returns a Client for a connection, which it closes.
func New(conn *grpc.ClientConn) *Client {
	return &Client{conn: conn, health: healthpb.NewHealthClient(conn), infer: pb.NewInferenceServiceClient(conn), models: pb.NewModelServiceClient(conn)}
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Limits of Ready.
const (
	readyTimeout = time.Second
	readyAge     = time.Second // how long a result is used again, however many callers ask
)

// Ready returns nil if a server is reached and reports SERVING.
func (c *Client) Ready(ctx context.Context) error {
	c.ready.Lock()
	defer c.ready.Unlock()
	if time.Since(c.ready.at) < readyAge {
		return c.ready.err
	}
	// The result is for every caller, so the end of this one must not spoil it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
	defer cancel()
	out, err := c.health.Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		err = fmt.Errorf("the server is %s", out.GetStatus())
	}
	c.ready.at, c.ready.err = time.Now(), err
	return err
}

// Models lists the models.
func (c *Client) Models(ctx context.Context) ([]*pb.ModelInfo, error) {
	out, err := c.models.ListModels(ctx, &pb.ListModelsRequest{})
	return out.GetModels(), err
}

// Tokenize turns text into token ids.
func (c *Client) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	return c.infer.Tokenize(ctx, in)
}

// Detokenize turns token ids into text.
func (c *Client) Detokenize(ctx context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
	return c.infer.Detokenize(ctx, in)
}
