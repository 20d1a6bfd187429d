package proctest

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

// A worker caches whole blocks of ids. The metadata key peek requests the number of cached tokens
// alone.
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
	cached map[[sha256.Size]byte]bool // guarded by mu; digests of prefixes
}

func (w *worker) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	peeks := len(metadata.ValueFromIncomingContext(stream.Context(), peek)) > 0
	if !peeks && w.calls.Add(1)%2 == 0 && w.mode == Failing {
		return status.Error(codes.Internal, "failing on purpose")
	}
	started := &pb.Started{CachedTokens: uint32(w.lookUp(in.GetTokenIds().GetIds(), !peeks))}
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

// lookUp returns the number of leading ids that are cached, without the last id. If keep is set,
// it caches them all.
func (w *worker) lookUp(ids []uint32, keep bool) (found int) {
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

// scheduler selects workers by its mode.
type scheduler struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedFleetServiceServer
	mode    string
	workers []*grpc.ClientConn
	next    atomic.Int64
}

func (s *scheduler) hangUp() {
	for _, conn := range s.workers {
		_ = conn.Close() // no call is running
	}
}

func (s *scheduler) Generate(in *pb.GenerateRequest, down grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	worker := int(s.next.Add(1)) % len(s.workers)
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
				best, worker = n, i
			}
		}
	}
	up, err := pb.NewInferenceServiceClient(s.workers[worker]).Generate(down.Context(), in)
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
