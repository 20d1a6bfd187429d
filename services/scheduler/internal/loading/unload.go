package loading

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// unloadAgain is the time between two rounds over the workers while a load of the model is under
// way here.
const unloadAgain = 100 * time.Millisecond

// Unload unloads the model on every worker that has it, ends the loads of it, and returns when the
// fleet's snapshots show that. id is the id of the call that wants it. The error is a status.
//
// A LoadModel that this Loader has just sent may reach its worker after the UnloadModel does. So
// the workers are asked again while such a load is under way, and once more after its end. Then no
// worker that is reached has the model.
func (l *Loader) Unload(ctx context.Context, in *pb.UnloadModelRequest, id string) (*pb.UnloadModelResponse, error) {
	u := unload{fleet: l.fleet, request: in, id: id, asked: map[string]bool{}, did: map[string]*pb.UnloadModelResponse{}}
	loads := l.end(in.GetModel())
	for _, j := range loads {
		j.addAsked(u.asked)
	}
	for {
		loads = slices.DeleteFunc(loads, func(j *Load) bool {
			select {
			case <-j.over:
				return true
			default:
				return false
			}
		})
		if err := u.round(ctx); err != nil {
			return nil, err
		}
		if len(loads) == 0 {
			return u.response()
		}
		select {
		case <-loads[0].over:
		case <-time.After(unloadAgain):
		case <-ctx.Done():
			return nil, rpcstatus.Of(context.Cause(ctx))
		}
	}
}

// unload is one call of Unload.
type unload struct {
	fleet   Fleet
	request *pb.UnloadModelRequest
	id      string
	asked   map[string]bool                    // workers that a load of the model was sent to
	did     map[string]*pb.UnloadModelResponse // by worker that had the model or loaded it
}

// round asks each worker that has the model or its file: a worker with the file may be loading it
// without having reported that.
func (u *unload) round(ctx context.Context) error {
	members, err := Reachable(u.fleet.Snapshot())
	if err != nil {
		return rpcstatus.Of(err)
	}
	var wait sync.WaitGroup
	answers, failures := make([]*pb.UnloadModelResponse, len(members)), make([]error, len(members))
	for i := range members {
		m := &members[i]
		if m.Model(u.request.GetModel()) == nil && m.File(u.request.GetModel()) == nil || !m.Link.Acquire() {
			continue
		}
		wait.Go(func() {
			defer m.Link.Release()
			answers[i], failures[i] = u.on(ctx, m)
		})
	}
	wait.Wait()
	for i := range members {
		switch {
		case status.Code(failures[i]) == codes.NotFound: // unloaded already
		case rpc.Reason(failures[i]) == reason.WorkerLost && members[i].Model(u.request.GetModel()) == nil &&
			!u.asked[members[i].Report.GetWorkerId()]: // it has the file only, and nothing was unloaded there
		case failures[i] != nil:
			return failures[i]
		case answers[i] != nil:
			u.add(members[i].Report.GetWorkerId(), answers[i])
		}
	}
	return nil
}

// on unloads the model on one worker, and waits until the worker no longer reports it.
func (u *unload) on(ctx context.Context, m *fleet.Member) (*pb.UnloadModelResponse, error) {
	lost := m.Link.Lost()
	ctx, cancel := context.WithCancel(rpc.WithRequestID(ctx, u.id))
	defer cancel()
	defer context.AfterFunc(lost, cancel)()
	answer, err := pb.NewModelServiceClient(m.Link.Conn()).UnloadModel(ctx, u.request)
	err = modelFailure(lost, m.Report.GetWorkerId(), err)
	if code := status.Code(err); code == codes.OK || code == codes.NotFound {
		awaitGone(ctx, u.fleet, m.Report.GetWorkerId(), u.request.GetModel())
	}
	return answer, err
}

// add adds the result of a worker to those of earlier rounds.
func (u *unload) add(worker string, answer *pb.UnloadModelResponse) {
	all := u.did[worker]
	if all == nil {
		all = &pb.UnloadModelResponse{}
		u.did[worker] = all
	}
	all.FreedBytes += answer.GetFreedBytes()
	if len(answer.GetLoadEndedWorkerIds()) > 0 {
		all.LoadEndedWorkerIds = []string{worker}
	}
}

// response sums up the results of all workers. It returns NOT_FOUND without any.
func (u *unload) response() (*pb.UnloadModelResponse, error) {
	out := &pb.UnloadModelResponse{WorkerIds: slices.Sorted(maps.Keys(u.did))}
	if len(out.WorkerIds) == 0 {
		return nil, rpcstatus.NotLoaded(u.request.GetModel())
	}
	for _, worker := range out.GetWorkerIds() {
		out.FreedBytes += u.did[worker].GetFreedBytes()
		out.LoadEndedWorkerIds = append(out.LoadEndedWorkerIds, u.did[worker].GetLoadEndedWorkerIds()...)
	}
	return out, nil
}
