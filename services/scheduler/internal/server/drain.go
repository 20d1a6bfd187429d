package server

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// DrainWorker makes a worker drain. It returns once the fleet's snapshots show the drain.
func (s *Server) DrainWorker(ctx context.Context, in *pb.DrainWorkerRequest) (*pb.DrainWorkerResponse, error) {
	err := s.setDraining(ctx, in.GetWorkerId(), true, func(ctx context.Context, w pb.WorkerServiceClient) error {
		_, err := w.Drain(ctx, &pb.DrainRequest{Timeout: in.GetTimeout()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pb.DrainWorkerResponse{}, nil
}

// UndrainWorker ends a worker's drain. It returns once the fleet's snapshots show that.
func (s *Server) UndrainWorker(ctx context.Context, in *pb.UndrainWorkerRequest) (*pb.UndrainWorkerResponse, error) {
	err := s.setDraining(ctx, in.GetWorkerId(), false, func(ctx context.Context, w pb.WorkerServiceClient) error {
		_, err := w.Undrain(ctx, &pb.UndrainRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pb.UndrainWorkerResponse{}, nil
}

// setDraining calls a worker to begin or end a drain, and waits for the worker's report of it.
func (s *Server) setDraining(ctx context.Context, id string, drains bool, call func(context.Context, pb.WorkerServiceClient) error) error {
	if id == "" {
		return rpcstatus.Invalid("worker_id is empty: name the worker",
			rpc.Violation{Field: "worker_id", Description: "is required: the id of a worker as WatchFleet reports it"})
	}
	rpc.Annotate(ctx, "worker", id)
	members, err := loading.Reachable(s.fleet.Snapshot())
	if err != nil {
		return rpcstatus.Of(err)
	}
	i := slices.IndexFunc(members, func(m fleet.Member) bool { return m.Report.GetWorkerId() == id })
	if i < 0 || !members[i].Link.Acquire() {
		return rpcstatus.UnknownWorker(id)
	}
	link := members[i].Link
	defer link.Release()
	ctx, cancel := context.WithCancel(rpc.WithRequestID(ctx, rpc.RequestID(ctx)))
	defer cancel()
	defer context.AfterFunc(link.Lost(), cancel)()
	if err := call(ctx, pb.NewWorkerServiceClient(link.Conn())); err != nil {
		return drainError(link.Lost(), id, err)
	}
	awaitDrain(ctx, s.fleet, id, drains)
	return nil
}

// drainError returns the status of a failed call to a worker. It distinguishes a worker that was
// lost from one that refused.
func drainError(lost context.Context, id string, err error) error {
	code := status.Code(err)
	switch {
	case lost.Err() != nil:
		return rpcstatus.LostDraining(id, context.Cause(lost))
	case rpcstatus.RefusesScheduler(err):
		return rpcstatus.LostDraining(id, err)
	case code == codes.Unimplemented:
		return rpcstatus.CannotDrain(id)
	case rpc.Info(err) == nil && (code == codes.Unavailable || code == codes.Internal):
		return rpcstatus.LostDraining(id, err)
	}
	return rpcstatus.Of(err)
}

// awaitDrain waits until the fleet's snapshots show whether the worker drains, so that a caller's
// next request is routed accordingly.
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
