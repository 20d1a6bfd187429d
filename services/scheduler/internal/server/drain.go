package server

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
)

// DrainWorker has a worker drain, and answers when the fleet's snapshots say so too.
func (s *Server) DrainWorker(ctx context.Context, in *pb.DrainWorkerRequest) (*pb.DrainWorkerResponse, error) {
	err := s.tell(ctx, in.GetWorkerId(), true, func(ctx context.Context, w pb.WorkerServiceClient) error {
		_, err := w.Drain(ctx, &pb.DrainRequest{Timeout: in.GetTimeout()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pb.DrainWorkerResponse{}, nil
}

// UndrainWorker has a worker serve again, and answers when the fleet's snapshots say so too.
func (s *Server) UndrainWorker(ctx context.Context, in *pb.UndrainWorkerRequest) (*pb.UndrainWorkerResponse, error) {
	err := s.tell(ctx, in.GetWorkerId(), false, func(ctx context.Context, w pb.WorkerServiceClient) error {
		_, err := w.Undrain(ctx, &pb.UndrainRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pb.UndrainWorkerResponse{}, nil
}

// tell makes a call to a worker that begins or ends a drain, and waits for the worker's report of it.
func (s *Server) tell(ctx context.Context, id string, drains bool, call func(context.Context, pb.WorkerServiceClient) error) error {
	if id == "" {
		return fault.Invalid("worker_id is empty: name the worker",
			rpc.Violation{Field: "worker_id", Description: "is required: the id of a worker as WatchFleet tells it"})
	}
	rpc.Annotate(ctx, "worker", id)
	members, err := loading.Reachable(s.fleet.Snapshot())
	if err != nil {
		return fault.Status(err)
	}
	i := slices.IndexFunc(members, func(m fleet.Member) bool { return m.Report.GetWorkerId() == id })
	if i < 0 || !members[i].Link.Acquire() {
		return fault.UnknownWorker(id)
	}
	link := members[i].Link
	defer link.Release()
	ctx, cancel := context.WithCancel(rpc.WithRequestID(ctx, rpc.RequestID(ctx)))
	defer cancel()
	defer context.AfterFunc(link.Lost(), cancel)()
	if err := call(ctx, pb.NewWorkerServiceClient(link.Conn())); err != nil {
		return told(link.Lost(), id, err)
	}
	awaitDrain(ctx, s.fleet, id, drains)
	return nil
}

// told tells a worker that went away from one that refused.
func told(lost context.Context, id string, err error) error {
	code := status.Code(err)
	switch {
	case lost.Err() != nil:
		return fault.LostTelling(id, context.Cause(lost))
	case fault.RefusesScheduler(err):
		return fault.LostTelling(id, err)
	case code == codes.Unimplemented:
		return fault.CannotDrain(id)
	case rpc.Info(err) == nil && (code == codes.Unavailable || code == codes.Internal):
		return fault.LostTelling(id, err)
	}
	return fault.Status(err)
}

// awaitDrain waits until the fleet's snapshots show whether the worker drains, so that a caller who is told so finds this scheduler
// of the same mind.
func awaitDrain(ctx context.Context, f Fleet, id string, drains bool) {
	fleet.Await(ctx, f, func(members []fleet.Member) bool {
		for i := range members {
			m := &members[i]
			if m.Connected && m.Report.GetWorkerId() == id {
				return (m.Report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING) == drains
			}
		}
		return false
	})
}
