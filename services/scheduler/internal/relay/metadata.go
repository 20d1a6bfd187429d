package relay

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/services/internal/rpc"
)

// forwarded are the request metadata keys that workers receive: the trace of a request that is not
// traced here. The caller's credentials are not forwarded.
var forwarded = []string{"traceparent", "tracestate", "baggage", "grpc-trace-bin"}

// Outgoing returns a context whose requests carry the call's id and trace.
func Outgoing(ctx context.Context) context.Context {
	md := metadata.Pairs(rpc.RequestIDKey, rpc.RequestID(ctx))
	for _, key := range forwarded {
		if values := metadata.ValueFromIncomingContext(ctx, key); len(values) > 0 {
			md[key] = values
		}
	}
	rpc.PutTrace(ctx, md)
	return metadata.NewOutgoingContext(ctx, md)
}

// Returned returns the part of a worker's headers or trailers that the caller receives. It removes
// the keys of the connection, the load reports, which are meant for the scheduler, and the
// pushback, which the scheduler's server adds itself.
func Returned(md metadata.MD) metadata.MD {
	var out metadata.MD
	for key, values := range md {
		switch {
		case key == "content-type", key == "user-agent", key == "date", key == "grpc-status-details-bin",
			key == rpc.PushbackTrailer, strings.HasPrefix(key, rpc.LoadReportPrefix), strings.HasPrefix(key, ":"):
			continue
		}
		if out == nil {
			out = metadata.MD{}
		}
		out[key] = values
	}
	return out
}
