package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

var loadStateOf = map[model.Stage]pb.LoadState{
	model.Queued: pb.LoadState_LOAD_STATE_QUEUED, model.Reading: pb.LoadState_LOAD_STATE_READING,
	model.Uploading: pb.LoadState_LOAD_STATE_UPLOADING, model.Verifying: pb.LoadState_LOAD_STATE_VERIFYING,
	model.Warming: pb.LoadState_LOAD_STATE_WARMING, model.Loaded: pb.LoadState_LOAD_STATE_READY,
}

var kvTypeOf = map[pb.KvType]engine.Type{
	pb.KvType_KV_TYPE_F32: engine.F32, pb.KvType_KV_TYPE_F16: engine.F16, pb.KvType_KV_TYPE_BF16: engine.BF16,
	pb.KvType_KV_TYPE_F8: engine.F8,
}

// LoadModel implements ModelService.
func (s *Server) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	rpc.Annotate(stream.Context(), "model", in.GetModel())
	options, err := loadOptions(in)
	if err != nil {
		return err
	}
	if err := s.admit(); err != nil {
		return err
	}
	var sendErr error
	inst, already, err := s.models.Load(stream.Context(), in.GetModel(), options, func(p model.Progress) {
		state := &pb.LoadProgress{State: loadStateOf[p.Stage], BytesDone: p.Done, BytesTotal: p.Total}
		if p.ETA > 0 {
			state.Eta = durationpb.New(p.ETA)
		}
		if sendErr == nil && p.Stage != 0 {
			sendErr = stream.Send(&pb.LoadModelResponse{
				WorkerId: s.identity.WorkerID, Event: &pb.LoadModelResponse_Progress{Progress: state},
			})
		}
	})
	s.nudge() // schedulers wait for the report of what they are told here
	if err != nil {
		return statusOf(err)
	}
	result := resultOf(inst.Status())
	result.AlreadyLoaded = already
	return stream.Send(&pb.LoadModelResponse{
		WorkerId: s.identity.WorkerID, Event: &pb.LoadModelResponse_Result{Result: result},
	})
}

func loadOptions(in *pb.LoadModelRequest) (o model.Options, err error) {
	c := &checker{}
	if in.GetModel() == "" {
		c.add("model", "is required: the name of a file in the models directory, without .gguf")
	}
	c.digest("expect_model_digest", in.ExpectModelDigest)
	if in.KvTokens != nil && in.GetKvTokens() == 0 {
		c.add("kv_tokens", "is 0: leave it unset, or give at least one context")
	}
	if in.ContextLength != nil && in.GetContextLength() == 0 {
		c.add("context_length", "is 0: leave it unset, or give at least 1")
	}
	if in.MaxSequences != nil && (in.GetMaxSequences() == 0 || in.GetMaxSequences() > 1024) {
		c.add("max_sequences", "is %d, want [1, 1024]", in.GetMaxSequences())
	}
	if in.Replicas != nil && in.GetReplicas() != 1 {
		c.add("replicas", "is %d: one worker holds one copy; ask a scheduler for more", in.GetReplicas())
	}
	kv, known := kvTypeOf[in.GetKvType()]
	if known {
		o.KVType = &kv
	} else if in.GetKvType() != pb.KvType_KV_TYPE_UNSPECIFIED {
		c.add("kv_type", "is %d, which is no type", in.GetKvType())
	}
	if err := invalid(c.violations); err != nil {
		return o, err
	}
	o.KVTokens, o.Context, o.MaxSequences, o.Pin = in.GetKvTokens(), in.GetContextLength(), in.GetMaxSequences(), in.Pin
	if in.ExpectModelDigest != nil {
		var d engine.Digest
		_, _ = hex.Decode(d[:], []byte(in.GetExpectModelDigest())) // checked above
		o.ExpectDigest = &d
	}
	return o, nil
}

// UnloadModel implements ModelService.
func (s *Server) UnloadModel(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	rpc.Annotate(ctx, "model", in.GetModel())
	done, err := s.models.Unload(ctx, in.GetModel(), in.GetCancelRunning())
	if err != nil {
		return nil, statusOf(notLoadedIsNotFound(err))
	}
	out := &pb.UnloadModelResponse{WorkerIds: []string{s.identity.WorkerID}, FreedBytes: done.Freed}
	if done.LoadEnded {
		out.LoadEndedWorkerIds = out.WorkerIds
	}
	return out, nil
}

// ListModels implements ModelService.
func (s *Server) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	byName := map[string]*pb.ModelInfo{}
	for _, f := range s.models.Files() {
		info := &pb.ModelInfo{
			Name: f.Name, State: pb.ModelState_MODEL_STATE_ON_DISK, FileBytes: f.Bytes, WorkerIds: []string{s.identity.WorkerID},
		}
		if f.Problem != nil {
			info.Problem = f.Problem.Error()
		} else {
			info.Capabilities = capabilitiesOf(f.Facts)
		}
		byName[f.Name] = info
	}
	for _, m := range s.models.Loaded() {
		info := byName[m.Name]
		if info == nil {
			info = &pb.ModelInfo{Name: m.Name, WorkerIds: []string{s.identity.WorkerID}}
			byName[m.Name] = info
		}
		info.State = modelStateOf[m.State]
		if m.State == model.Loading {
			continue
		}
		info.ModelDigest, info.Loaded = digestOf(m), resultOf(m)
		info.Capabilities, info.IdleAge = capabilitiesOf(m.Facts), idleAge(m)
		if m.Pinned {
			info.PinnedWorkerIds = []string{s.identity.WorkerID}
		}
		if m.Problem != nil {
			info.Problem = m.Problem.Error()
		}
	}
	out := &pb.ListModelsResponse{}
	for _, info := range byName {
		out.Models = append(out.Models, info)
	}
	slices.SortFunc(out.Models, func(a, b *pb.ModelInfo) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// notLoadedIsNotFound: to unload what is not loaded names nothing.
func notLoadedIsNotFound(err error) error {
	if !errors.Is(err, model.ErrNotLoaded) {
		return err
	}
	return rpc.Fault{Code: codes.NotFound, Domain: rpc.WorkerDomain, Reason: reason.ModelNotLoaded, Message: err.Error()}.Err()
}
