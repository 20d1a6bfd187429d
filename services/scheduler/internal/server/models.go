package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// reachable are the connected members of the newest snapshot; the error is a status.
func (s *Server) reachable() ([]fleet.Member, error) {
	snapshot := s.fleet.Snapshot()
	if !snapshot.Route.Known {
		return nil, fault.Status(fmt.Errorf("%w: this scheduler has not heard from its workers yet: try again", route.ErrFleetUnknown))
	}
	var out []fleet.Member
	for _, m := range snapshot.Members {
		if m.Connected {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, fault.Status(fmt.Errorf("%w: none of the %d workers configured can be reached: start one, or check --workers",
			route.ErrNoWorker, len(snapshot.Members)))
	}
	return out, nil
}

// modelOn is the status of a model on a member, or nil.
func modelOn(m *fleet.Member, name string) *pb.ModelStatus {
	for _, model := range m.Report.GetModels() {
		if model.GetName() == name {
			return model
		}
	}
	return nil
}

// fileOn is a model file on a member, or nil.
func fileOn(m *fleet.Member, name string) *pb.ModelFile {
	for _, file := range m.Report.GetFiles() {
		if file.GetName() == name {
			return file
		}
	}
	return nil
}

// requestID carries the call's id to a worker.
func requestID(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpc.RequestIDKey, id)
}

// UnloadModel unloads the model on every worker that has it, and answers when the fleet's snapshots say so too.
func (s *Server) UnloadModel(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	if err := checkName(in.GetModel()); err != nil {
		return nil, err
	}
	members, err := s.reachable()
	if err != nil {
		return nil, err
	}
	var wait sync.WaitGroup
	answers := make([]*pb.UnloadModelResponse, len(members))
	failures := make([]error, len(members))
	for i := range members {
		m := &members[i]
		if modelOn(m, in.GetModel()) == nil || !m.Link.Acquire() {
			continue
		}
		wait.Go(func() {
			defer m.Link.Release()
			lost := m.Link.Lost()
			ctx, cancel := context.WithCancel(requestID(ctx, rpc.RequestID(ctx)))
			defer cancel()
			defer context.AfterFunc(lost, cancel)()
			answers[i], failures[i] = pb.NewModelServiceClient(m.Link.Conn()).UnloadModel(ctx, in)
			failures[i] = modelFailure(lost, m.Report.GetWorkerId(), failures[i])
			if code := status.Code(failures[i]); code == codes.OK || code == codes.NotFound {
				awaitGone(ctx, s.fleet, m.Report.GetWorkerId(), in.GetModel())
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

// ListModels merges what the workers report: one entry for each name, state and digest.
func (s *Server) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	members, err := s.reachable()
	if err != nil {
		return nil, err
	}
	merged := map[string]*pb.ModelInfo{}
	add := func(worker string, info *pb.ModelInfo) {
		key := fmt.Sprintf("%s\x00%d\x00%s\x00%s", info.GetName(), info.GetState(), info.GetModelDigest(), info.GetProblem())
		if merged[key] == nil {
			merged[key] = info
		}
		merged[key].WorkerIds = append(merged[key].WorkerIds, worker)
	}
	for i := range members {
		m := &members[i]
		id := m.Report.GetWorkerId()
		for _, model := range m.Report.GetModels() {
			add(id, &pb.ModelInfo{
				Name: model.GetName(), State: model.GetState(), ModelDigest: model.GetModelDigest(),
				FileBytes: fileOn(m, model.GetName()).GetFileBytes(), Capabilities: model.GetCapabilities(),
				Problem: model.GetProblem(), Loaded: model.GetLoaded(),
			})
		}
		for _, file := range m.Report.GetFiles() {
			if modelOn(m, file.GetName()) == nil {
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
		out.Models = append(out.Models, info)
	}
	slices.SortFunc(out.Models, func(a, b *pb.ModelInfo) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), -cmp.Compare(a.GetState(), b.GetState()),
			cmp.Compare(a.GetModelDigest(), b.GetModelDigest()), cmp.Compare(a.GetProblem(), b.GetProblem()))
	})
	return out, nil
}
