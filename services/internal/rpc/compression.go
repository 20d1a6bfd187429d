package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"

	"github.com/millrace/millrace/services/internal/reason"
)

// uncompressed refuses calls whose messages are compressed, before any is read. A kilobyte may become a thousand, and what bounds the
// bytes that callers make a server hold counts them when they are there. That no compressor is linked is nothing to rely on: libraries
// bring theirs.
func uncompressed(ctx context.Context, domain string) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok {
		return nil
	}
	is := stream.RecvCompress()
	if is == "" || is == encoding.Identity {
		return nil
	}
	return Fault{
		Code: codes.Unimplemented, Domain: domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("the request is compressed by %.32q, and this server takes none that is: send it as it is", is),
		Metadata: map[string]string{"compression": clip(is)},
	}.Err()
}
