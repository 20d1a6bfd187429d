package server

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// requestGap is the least time between two requests of a scheduler: it sends one a second, and whoever sends many waits.
const requestGap = 10 * time.Millisecond

// Health implements WorkerService: a full report at once, deltas when something changes, heartbeats at the wanted
// interval. When the worker stops, the stream goes on until its running requests have ended.
func (s *Server) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	s.followers.Add(1)
	defer s.followers.Add(-1)
	ctx := stream.Context()
	requests, ended := make(chan *pb.HealthRequest), make(chan error, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- in:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(requestGap):
			case <-ctx.Done():
				return
			}
		}
	}()
	select {
	case <-s.published:
	case <-ctx.Done():
		return ctx.Err()
	}
	f := &follower{server: s, stream: stream, interval: defaultHealthInterval, due: time.NewTimer(defaultHealthInterval)}
	defer f.due.Stop()
	draining := rpc.Draining(ctx)
	err := f.full()
	for err == nil && !f.seen.over {
		f.arm()
		select {
		case in := <-requests:
			err = f.request(in)
		case <-f.seen.changed:
			err = f.tell()
		case <-f.due.C:
			err = f.tell()
		case <-draining:
			s.Stop()
			draining = nil
		case err = <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
	}
	return err
}
