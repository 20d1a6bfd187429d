package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// CheckHealth asks the server at target for its health and returns nil if it says SERVING. Options are those of Dial.
func CheckHealth(ctx context.Context, target, program string, options ...grpc.DialOption) error {
	conn, err := Dial(target, program, options...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // only an error if closed twice
	out, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("check health of %s: %w", target, err)
	}
	if out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("server at %s is %s", target, out.GetStatus())
	}
	return nil
}
