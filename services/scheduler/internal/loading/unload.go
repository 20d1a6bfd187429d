package loading

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// Unload unloads the model on every worker that has it, and answers when the fleet's snapshots say so too; id is of the call that
// wants it. The error is a status.
func (l *Loader) Unload(ctx context.Context, in *pb.UnloadModelRequest, id string) (*pb.UnloadModelResponse, error) {
	members, err := Reachable(l.fleet.Snapshot())
	if err != nil {
		return nil, fault.Status(err)
	}
	var wait sync.WaitGroup
	answers := make([]*pb.UnloadModelResponse, len(members))
	failures := make([]error, len(members))
	for i := range members {
		m := &members[i]
		if m.Model(in.GetModel()) == nil || !m.Link.Acquire() {
			continue
		}
		wait.Go(func() {
			defer m.Link.Release()
			lost := m.Link.Lost()
			ctx, cancel := context.WithCancel(rpc.WithRequestID(ctx, id))
			defer cancel()
			defer context.AfterFunc(lost, cancel)()
			answers[i], failures[i] = pb.NewModelServiceClient(m.Link.Conn()).UnloadModel(ctx, in)
			failures[i] = modelFailure(lost, m.Report.GetWorkerId(), failures[i])
			if code := status.Code(failures[i]); code == codes.OK || code == codes.NotFound {
				awaitGone(ctx, l.fleet, m.Report.GetWorkerId(), in.GetModel())
			}
		})
	}
	wait.Wait()
	out := &pb.UnloadModelResponse{}
	for i := range members {
		switch {
		case status.Code(failures[i]) == codes.NotFound: // gone already: that is what was asked for
		case failures[i] != nil:
			return nil, failures[i]
		case answers[i] != nil:
			out.WorkerIds = append(out.WorkerIds, members[i].Report.GetWorkerId())
			out.FreedBytes += answers[i].GetFreedBytes()
		}
	}
	if len(out.GetWorkerIds()) == 0 {
		return nil, fault.NotLoaded(in.GetModel())
	}
	slices.Sort(out.WorkerIds)
	return out, nil
}
