package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tokenizer"
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
	if err := s.Admit(); err != nil {
		return err
	}
	var sendErr error // a load continues when its caller is gone
	inst, already, err := s.models.Load(stream.Context(), in.GetModel(), options, func(p model.Progress) {
		if sendErr == nil && p.Stage != 0 {
			sendErr = stream.Send(&pb.LoadModelResponse{
				WorkerId: s.cfg.WorkerID, Event: &pb.LoadModelResponse_Progress{Progress: loadProgressOf(p)},
			})
		}
	})
	s.Nudge() // a scheduler that sees the load end waits for the report of its model
	if err != nil {
		return statusOf(err)
	}
	result := resultOf(inst.Status())
	result.AlreadyLoaded = already
	return stream.Send(&pb.LoadModelResponse{
		WorkerId: s.cfg.WorkerID, Event: &pb.LoadModelResponse_Result{Result: result},
	})
}

func loadProgressOf(p model.Progress) *pb.LoadProgress {
	out := &pb.LoadProgress{State: loadStateOf[p.Stage], BytesDone: p.Done, BytesTotal: p.Total}
	if p.ETA > 0 {
		out.Eta = durationpb.New(p.ETA)
	}
	return out
}

// loadOptions returns the options of a load, or refuses the request with every violation.
func loadOptions(in *pb.LoadModelRequest) (o model.Options, err error) {
	c := &Checker{}
	if in.GetModel() == "" {
		c.Add("model", "is required: the name of a file in the models directory, without .gguf")
	}
	c.Digest("expect_model_digest", in.ExpectModelDigest)
	if in.KvTokens != nil && in.GetKvTokens() == 0 {
		c.Add("kv_tokens", "is 0: leave it unset, or give at least one context")
	}
	if in.ContextLength != nil && in.GetContextLength() == 0 {
		c.Add("context_length", "is 0: leave it unset, or give at least 1")
	}
	if in.MaxSequences != nil && (in.GetMaxSequences() == 0 || in.GetMaxSequences() > 1024) {
		c.Add("max_sequences", "is %d, want [1, 1024]", in.GetMaxSequences())
	}
	if in.Replicas != nil && in.GetReplicas() != 1 {
		c.Add("replicas", "is %d: one worker holds one copy; use a scheduler for more", in.GetReplicas())
	}
	kv, known := kvTypeOf[in.GetKvType()]
	if known {
		o.KVType = &kv
	} else if in.GetKvType() != pb.KvType_KV_TYPE_UNSPECIFIED {
		c.Add("kv_type", "is %d, which is no type", in.GetKvType())
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
	out := &pb.UnloadModelResponse{WorkerIds: []string{s.cfg.WorkerID}, FreedBytes: done.Freed}
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
			Name: f.Name, State: pb.ModelState_MODEL_STATE_ON_DISK, FileBytes: f.Bytes, WorkerIds: []string{s.cfg.WorkerID},
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
			info = &pb.ModelInfo{Name: m.Name, WorkerIds: []string{s.cfg.WorkerID}}
			byName[m.Name] = info
		}
		info.State = modelStateOf[m.State]
		if m.State == model.Loading {
			continue
		}
		info.ModelDigest, info.Loaded = digestOf(m), resultOf(m)
		info.Capabilities, info.IdleAge = capabilitiesOf(m.Facts), idleAge(m)
		if m.Pinned {
			info.PinnedWorkerIds = []string{s.cfg.WorkerID}
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

// notLoadedIsNotFound returns NOT_FOUND for an unload of a model that is not loaded. Other calls
// get FAILED_PRECONDITION for the same error.
func notLoadedIsNotFound(err error) error {
	if !errors.Is(err, model.ErrNotLoaded) {
		return err
	}
	return rpc.Error{Code: codes.NotFound, Domain: rpc.WorkerDomain, Reason: reason.ModelNotLoaded, Message: err.Error()}.Err()
}

// statusOfModel returns a model's part of a report. interval is the time between two checks of its
// weights.
func statusOfModel(m model.Status, interval time.Duration) *pb.ModelStatus {
	out := &pb.ModelStatus{Name: m.Name, State: modelStateOf[m.State]}
	if m.State == model.Loading {
		return out
	}
	out.ModelDigest, out.ContextLength, out.ClassId = digestOf(m), uint32(m.Context), m.ClassID
	out.Capabilities, out.Loaded = capabilitiesOf(m.Facts), resultOf(m)
	out.VerifiedAge, out.VerifyInterval = age(m.VerifiedAge), age(interval)
	out.Pinned, out.IdleAge, out.IdleUnload, out.Reclaimable = m.Pinned, idleAge(m), age(m.IdleUnload), m.Reclaimable
	if m.Problem != nil {
		out.Problem = m.Problem.Error()
	}
	return out
}

// age returns a duration, or nil for none.
func age(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

// idleAge returns 0 while a request holds a model, and nil for a model out of service.
func idleAge(m model.Status) *durationpb.Duration {
	if m.State != model.Ready {
		return nil
	}
	return durationpb.New(m.IdleAge)
}

// maxSuppressedIDs bounds the suppressed ids of a report. A file may list its whole vocabulary, and
// a report goes to every scheduler.
const maxSuppressedIDs = 1024

// digestOf returns a model's digest in hex, and "" until the whole file was read.
func digestOf(m model.Status) string {
	if m.Digest == (engine.Digest{}) {
		return ""
	}
	return hex.EncodeToString(m.Digest[:])
}

// resultOf returns the result of a load.
func resultOf(m model.Status) *pb.LoadResult {
	return &pb.LoadResult{
		ModelDigest: digestOf(m), DeviceBytes: m.DeviceBytes, KvBlocks: uint32(m.Runner.KVBlocks),
		BlockSize: uint32(m.Runner.BlockSize), MaxSequences: uint32(m.Runner.MaxSequences), ContextLength: uint32(m.Context),
		SamplingDefaults: m.Defaults,
	}
}

// capabilitiesOf returns the capabilities of a model, from its file.
func capabilitiesOf(f model.Facts) *pb.ModelCapabilities {
	c := &pb.ModelCapabilities{
		Architecture: f.Architecture, Quantisation: f.Quantization, ContextLength: uint32(f.Context),
		Vocabulary: uint32(f.Vocabulary), Parameters: f.Parameters, Tokenizer: f.HasTokenizer, ChatTemplate: f.HasTemplate,
		ToolFormat: f.Format.Name, Reasoning: f.Format.Reasons(),
		ChatTemplates: f.Templates, WeightTypes: f.WeightTypes, SlidingWindow: uint32(f.Window),
		EmbeddingWidth: uint32(f.Width), Rerank: f.Rerank, RerankOnly: f.Pooling == arch.PoolingRank,
	}
	if f.Pooling != arch.PoolingNone && f.Pooling != arch.PoolingRank {
		pooling := pb.Pooling(f.Pooling)
		c.Pooling = &pooling
	}
	if f.BOS != tokenizer.None {
		id := uint32(f.BOS)
		c.BosTokenId = &id
	}
	if f.EOS != tokenizer.None {
		id := uint32(f.EOS)
		c.EosTokenId = &id
	}
	for _, id := range f.EndIDs {
		c.EndTokenIds = append(c.EndTokenIds, uint32(id))
	}
	if s := f.Sampling; !s.Empty() {
		c.Sampling = &pb.Sampling{
			Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP,
			RepetitionPenalty: s.RepetitionPenalty, PenaltyWindow: s.PenaltyWindow,
		}
	}
	for _, id := range f.SuppressedIDs[:min(len(f.SuppressedIDs), maxSuppressedIDs)] {
		c.SuppressedTokenIds = append(c.SuppressedTokenIds, uint32(id))
	}
	return c
}
