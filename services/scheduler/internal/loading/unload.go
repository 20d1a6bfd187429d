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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// unloadAgain is the time between two rounds over the workers while a load of the model is under way here.
const unloadAgain = 100 * time.Millisecond

// Unload unloads the model on every worker that has it, ends the loads of it, and answers when the fleet's snapshots say so too; id is
// of the call that wants it. The error is a status.
//
// A LoadModel that this Loader has just sent may reach its worker after the UnloadModel does. So the workers are asked again for as long
// as such a load is under way, and once more when none is: then no worker that is reached has the model.
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
			return nil, fault.Status(context.Cause(ctx))
		}
	}
}

// unload is one call of Unload.
type unload struct {
	fleet   Fleet
	request *pb.UnloadModelRequest
	id      string
	asked   map[string]bool                    // workers that a load of the model was sent to
	did     map[string]*pb.UnloadModelResponse // by worker, of those that had the model or loaded it
}

// round asks each worker that has the model, or its file: that one may load it, and not have reported that yet.
func (u *unload) round(ctx context.Context) error {
	members, err := Reachable(u.fleet.Snapshot())
	if err != nil {
		return fault.Status(err)
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
		case status.Code(failures[i]) == codes.NotFound: // gone already: that is what was asked for
		case rpc.Reason(failures[i]) == reason.WorkerLost && members[i].Model(u.request.GetModel()) == nil &&
			!u.asked[members[i].Report.GetWorkerId()]: // it has the file alone, and nothing is unloaded there
		case failures[i] != nil:
			return failures[i]
		case answers[i] != nil:
			u.add(members[i].Report.GetWorkerId(), answers[i])
		}
	}
	return nil
}

// on asks one worker, and waits until it reports the model no more.
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

// add adds the result of a worker, over all rounds.
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

// response is what all workers did; NOT_FOUND if that is nothing.
func (u *unload) response() (*pb.UnloadModelResponse, error) {
	out := &pb.UnloadModelResponse{WorkerIds: slices.Sorted(maps.Keys(u.did))}
	if len(out.WorkerIds) == 0 {
		return nil, fault.NotLoaded(u.request.GetModel())
	}
	for _, worker := range out.GetWorkerIds() {
		out.FreedBytes += u.did[worker].GetFreedBytes()
		out.LoadEndedWorkerIds = append(out.LoadEndedWorkerIds, u.did[worker].GetLoadEndedWorkerIds()...)
	}
	return out, nil
}
