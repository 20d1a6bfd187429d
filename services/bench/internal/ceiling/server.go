package ceiling

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// inference answers every Generate with max_tokens messages of one token.
type inference struct {
	pb.UnimplementedInferenceServiceServer
}

func (inference) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{Seed: 1}}})
	n := in.GetStopping().GetMaxTokens()
	for i := range n {
		if err != nil {
			return err
		}
		err = stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
			TokenIndex: uint32(i), TokenIds: []uint32{uint32(i)}, Text: " mill",
		}}})
	}
	if err != nil {
		return err
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		Reason: pb.FinishReason_FINISH_REASON_LENGTH, Usage: &pb.Usage{CompletionTokens: uint32(n)},
	}}})
}

// serve starts the server on loopback. stop ends it and waits.
func serve(ctx context.Context, logger hclog.Logger) (address string, stop func() error, err error) {
	lis, err := rpc.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, logger)
	pb.RegisterInferenceServiceServer(server, inference{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	return lis.Addr().String(), func() error {
		cancel()
		if err := <-done; err != nil {
			return fmt.Errorf("server of the ceiling: %w", err)
		}
		return nil
	}, nil
}
