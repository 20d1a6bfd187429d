package load

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Encoded is a request as it goes over the wire, of so many prompt tokens. Its bytes are the calls' until they have ended.
type Encoded struct {
	Data   mem.BufferSlice
	Prompt int
}

// CallEncoded is Call of a request that is encoded already: what encoding takes is not in its times, nor beside other calls'.
func CallEncoded(ctx context.Context, conn grpc.ClientConnInterface, in Encoded, due time.Time) Outcome {
	return follow(ctx, due, 0, Outcome{Prompt: in.Prompt}, Observer{}, func(ctx context.Context) (events, error) {
		stream, err := conn.NewStream(ctx, &pb.InferenceService_ServiceDesc.Streams[0], pb.InferenceService_Generate_FullMethodName,
			grpc.ForceCodecV2(rpc.FrameCodec()))
		if err != nil {
			return nil, err
		}
		if err := stream.SendMsg(&rpc.Frame{Data: in.Data}); err != nil {
			return nil, err
		}
		return &grpc.GenericClientStream[rpc.Frame, pb.GenerateResponse]{ClientStream: stream}, stream.CloseSend()
	})
}
