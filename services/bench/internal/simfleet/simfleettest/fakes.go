package simfleettest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// block is how many ids are cached as one; peek asks a worker what it has cached, and for no more.
const (
	block = 16
	peek  = "peek"
)

// worker caches every prompt for ever, in whole blocks.
type worker struct {
	pb.UnimplementedInferenceServiceServer
	mode  string
	calls atomic.Int64

	mu     sync.Mutex
	cached map[[sha256.Size]byte]bool // guarded by mu; digests of beginnings
}

func (w *worker) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	peeks := len(metadata.ValueFromIncomingContext(stream.Context(), peek)) > 0
	if !peeks && w.calls.Add(1)%2 == 0 && w.mode == Failing {
		return status.Error(codes.Internal, "out of luck")
	}
	started := &pb.Started{CachedTokens: uint32(w.look(in.GetTokenIds().GetIds(), !peeks))}
	if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: started}}); err != nil || peeks {
		return err
	}
	for range in.GetStopping().GetMaxTokens() {
		event := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIds: []uint32{1}}}}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}})
}

// look is how many lead ids are cached; the last id never counts. keep caches them all.
func (w *worker) look(ids []uint32, keep bool) (found int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := [sha256.Size]byte{} // of all ids until here
	for n := block; n < len(ids); n += block {
		name = sha256.Sum256(fmt.Append(name[:], ids[n-block:n]))
		if w.cached[name] && found == n-block {
			found = n
		}
		if keep {
			w.cached[name] = true
		}
	}
	return found
}

// scheduler asks workers by its mode.
type scheduler struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedFleetServiceServer
	mode    string
	workers []*grpc.ClientConn
	turn    atomic.Int64
}

func (s *scheduler) hangUp() {
	for _, conn := range s.workers {
		_ = conn.Close() // nothing is left to be lost
	}
}

func (s *scheduler) Generate(in *pb.GenerateRequest, down grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	at := int(s.turn.Add(1)) % len(s.workers)
	if s.mode == Knowing {
		best := uint32(0)
		ctx := metadata.AppendToOutgoingContext(down.Context(), peek, "1")
		for i, conn := range s.workers {
			up, err := pb.NewInferenceServiceClient(conn).Generate(ctx, in)
			if err != nil {
				return err
			}
			event, err := up.Recv()
			if err != nil {
				return err
			}
			if n := event.GetStarted().GetCachedTokens(); n > best {
				best, at = n, i
			}
		}
	}
	up, err := pb.NewInferenceServiceClient(s.workers[at]).Generate(down.Context(), in)
	for err == nil {
		var event *pb.GenerateResponse
		if event, err = up.Recv(); err == nil {
			err = down.Send(event)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *scheduler) WatchFleet(_ *pb.WatchFleetRequest, stream grpc.ServerStreamingServer[pb.WatchFleetResponse]) error {
	fleet := &pb.WatchFleetResponse{}
	for range s.workers {
		fleet.Workers = append(fleet.Workers, &pb.FleetWorker{
			Connected: true, Report: &pb.WorkerReport{Models: []*pb.ModelStatus{{Name: "bench"}}},
		})
	}
	return stream.Send(fleet)
}
