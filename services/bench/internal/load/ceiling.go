package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// nearCeiling is the share of the generator's ceiling above which the generator, not the server,
// may limit the measured rate.
const nearCeiling = 0.7

// GeneratorLimited reports whether rate is so close to the generator's ceiling that the generator
// may be the limit. A ceiling of 0 was not measured.
func GeneratorLimited(rate, ceiling float64) bool { return ceiling > 0 && rate > nearCeiling*ceiling }

// CeilingConfig configures the generator whose ceiling is measured.
type CeilingConfig struct {
	Connections int
	Concurrency int
	Size        Size
	Maker       Maker
	Duration    time.Duration
}

// MeasureCeiling runs the generator against a server in this process that computes nothing, and
// returns messages a second, above 0. The clock starts when every connection is established. If no
// message arrives within the duration, the duration doubles.
func MeasureCeiling(ctx context.Context, cfg CeilingConfig, logger hclog.Logger) (rate float64, err error) {
	address, stop, err := serveInstant(ctx, logger)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	conns, hangUp, err := Dial(address, cfg.Connections)
	if err != nil {
		return 0, err
	}
	defer hangUp()
	first := Generator{Conns: conns, Maker: cfg.Maker, To: NewRecorder(nil)}
	first.Closed(ctx, cfg.Connections, Size{Prompt: 1, Output: 1}, 0, uint64(cfg.Connections))
	recorder := NewRecorder(nil)
	generator := Generator{Conns: conns, Maker: cfg.Maker, To: recorder}
	begin := time.Now()
	var live Live
	for d := cfg.Duration; live.Messages+live.Failed == 0 && ctx.Err() == nil; d *= 2 {
		window, cancel := context.WithCancel(ctx) // a deadline would travel with the calls and fail some
		timer := time.AfterFunc(d, cancel)
		generator.Closed(window, cfg.Concurrency, cfg.Size, 0, 0)
		timer.Stop()
		cancel()
		live = recorder.Live()
	}
	took := time.Since(begin).Seconds()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case live.Failed > 0:
		return 0, fmt.Errorf("measuring the generator: %d of %d calls within this process failed", live.Failed, live.Finished)
	}
	return float64(live.Messages) / took, nil
}

// instant answers every Generate with max_tokens messages of one token.
type instant struct {
	pb.UnimplementedInferenceServiceServer
}

func (instant) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
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

// serveInstant starts an instant server on loopback. stop ends it and waits.
func serveInstant(ctx context.Context, logger hclog.Logger) (address string, stop func() error, err error) {
	lis, err := rpc.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, logger)
	pb.RegisterInferenceServiceServer(server, instant{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	return lis.Addr().String(), func() error {
		cancel()
		if err := <-done; err != nil {
			return fmt.Errorf("server of the generator's ceiling: %w", err)
		}
		return nil
	}, nil
}
