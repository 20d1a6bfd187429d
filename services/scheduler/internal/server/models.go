package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// maxReplicas is the contract's bound of replicas.
const maxReplicas = 1024

// LoadModel loads a model on as many workers as requested, and streams their events.
func (s *Server) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	if err := checkName(in.GetModel()); err != nil {
		return err
	}
	rpc.Annotate(stream.Context(), "model", in.GetModel())
	if in.Replicas != nil && (in.GetReplicas() < 1 || in.GetReplicas() > maxReplicas) {
		return rpcstatus.Invalid(fmt.Sprintf("replicas is %d: must be in [1, %d]", in.GetReplicas(), maxReplicas),
			rpc.Violation{Field: "replicas", Description: fmt.Sprintf("must be in [1, %d]", maxReplicas)})
	}
	load, err := s.loader.Start(loading.Order{Request: in, ID: rpc.RequestID(stream.Context())})
	if err != nil {
		return err
	}
	defer load.Leave()
	for {
		select {
		case event, more := <-load.Events():
			if !more {
				return load.Err()
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return rpcstatus.Of(context.Cause(stream.Context())) // the load goes on
		}
	}
}

// UnloadModel unloads the model on every worker that has it.
func (s *Server) UnloadModel(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	if err := checkName(in.GetModel()); err != nil {
		return nil, err
	}
	return s.loader.Unload(ctx, in, rpc.RequestID(ctx))
}

// ListModels merges the workers' reports into one entry for each name, state and digest.
func (s *Server) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	members, err := loading.Reachable(s.fleet.Snapshot())
	if err != nil {
		return nil, rpcstatus.Of(err)
	}
	ages := agesOf(s.fleet.Members(), time.Now())
	merged := map[string]*pb.ModelInfo{}
	add := func(worker string, info *pb.ModelInfo) {
		one := merged[key(info)]
		if one == nil {
			one = info
			merged[key(info)] = one
		}
		one.WorkerIds = append(one.WorkerIds, worker)
		one.IdleAge = younger(one.GetIdleAge(), info.GetIdleAge())
	}
	for i := range members {
		m := &members[i]
		id := m.Report.GetWorkerId()
		for _, model := range m.Report.GetModels() {
			info := &pb.ModelInfo{
				Name: model.GetName(), State: model.GetState(), ModelDigest: model.GetModelDigest(),
				FileBytes: m.File(model.GetName()).GetFileBytes(), Capabilities: model.GetCapabilities(),
				Problem: model.GetProblem(), Loaded: model.GetLoaded(), IdleAge: ages[copyID{id, model.GetName()}],
			}
			add(id, info)
			if model.GetPinned() {
				merged[key(info)].PinnedWorkerIds = append(merged[key(info)].PinnedWorkerIds, id)
			}
		}
		for _, file := range m.Report.GetFiles() {
			if m.Model(file.GetName()) == nil {
				add(id, &pb.ModelInfo{
					Name: file.GetName(), State: pb.ModelState_MODEL_STATE_ON_DISK, FileBytes: file.GetFileBytes(),
					Capabilities: file.GetCapabilities(), Problem: file.GetProblem(),
				})
			}
		}
	}
	out := &pb.ListModelsResponse{}
	for _, info := range merged {
		slices.Sort(info.WorkerIds)
		slices.Sort(info.PinnedWorkerIds)
		out.Models = append(out.Models, info)
	}
	slices.SortFunc(out.Models, func(a, b *pb.ModelInfo) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), -cmp.Compare(a.GetState(), b.GetState()),
			cmp.Compare(a.GetModelDigest(), b.GetModelDigest()), cmp.Compare(a.GetProblem(), b.GetProblem()))
	})
	return out, nil
}

// key returns the key by which models are merged.
func key(info *pb.ModelInfo) string {
	return fmt.Sprintf("%s\x00%d\x00%s\x00%s", info.GetName(), info.GetState(), info.GetModelDigest(), info.GetProblem())
}

// copyID identifies a model on a worker.
type copyID struct{ worker, model string }

// agesOf returns how long ago each model was used, as of now: the age that its worker reported,
// plus the time since the report. It is 0 while a request runs. members must be current and not
// from a snapshot, because a snapshot is only made after changes that routing depends on.
func agesOf(members []fleet.Member, now time.Time) map[copyID]*durationpb.Duration {
	ages := map[copyID]*durationpb.Duration{}
	for i := range members {
		for _, m := range members[i].Report.GetModels() {
			age := m.GetIdleAge()
			if age.AsDuration() > 0 {
				age = durationpb.New(age.AsDuration() + now.Sub(members[i].ModelsAt))
			}
			if age != nil && members[i].Connected {
				ages[copyID{members[i].Report.GetWorkerId(), m.GetName()}] = age
			}
		}
	}
	return ages
}

// younger returns the lesser of two ages. An age that is not set is not known.
func younger(a, b *durationpb.Duration) *durationpb.Duration {
	if a == nil || b != nil && b.AsDuration() < a.AsDuration() {
		return b
	}
	return a
}
