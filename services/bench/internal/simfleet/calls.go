package simfleet

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	bench "github.com/millrace/millrace/services/bench/internal/load"
)

// load has a worker load the model.
func load(ctx context.Context, conn grpc.ClientConnInterface, c *Config) error {
	return bench.LoadModel(ctx, conn, &pb.LoadModelRequest{
		Model: Model, KvTokens: &c.KVTokens, ContextLength: &c.Context, MaxSequences: &c.Sequences,
	})
}

// serves reports nil once a scheduler knows a worker that has the model.
func serves(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := bench.FindTarget(ctx, conn, Model)
	return err
}

// addresses is the value of --workers.
func addresses(workers []*Program) string {
	all := make([]string, len(workers))
	for i, w := range workers {
		all[i] = w.Address
	}
	return strings.Join(all, ",")
}

// CPU is the processor time that programs have used so far, together.
func CPU(programs ...*Program) (sum time.Duration, err error) {
	for _, p := range programs {
		used, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Request asks the model for output tokens behind ids, greedily and without text.
func Request(ids []uint32, output int) *pb.GenerateRequest {
	yes, most := true, int32(output)
	return &pb.GenerateRequest{
		Model: Model, Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}},
		Stopping: &pb.Stopping{MaxTokens: &most, IgnoreEos: &yes}, Response: &pb.ResponseOptions{TokenIdsOnly: &yes},
		Sampling: &pb.Sampling{Temperature: new(float32)},
	}
}
