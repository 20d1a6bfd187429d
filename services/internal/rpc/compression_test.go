package rpc_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// TestCompressedRequestIsRefusedUnread runs in a program that has the compressor, like programs
// that export telemetry.
func TestCompressedRequestIsRefusedUnread(t *testing.T) {
	const limit = 1 << 10
	conn := pair(t, rpc.ServerConfig{MaxReceiveBytes: limit})
	c := pb.NewInferenceServiceClient(conn)
	_, err := c.Tokenize(within(t), text(strings.Repeat("a", limit+1)), grpc.UseCompressor(gzip.Name))
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
	require.Equal(t, reason.NotBuilt, rpc.Reason(err), "it is not read, or its size were the reason")
	_, err = c.Tokenize(within(t), text("a"), grpc.UseCompressor("identity"))
	require.NoError(t, err)
}
