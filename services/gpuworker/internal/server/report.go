package server

import (
	"encoding/hex"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

var stateOf = map[health.State]pb.WorkerState{
	health.Starting: pb.WorkerState_WORKER_STATE_STARTING, health.Ready: pb.WorkerState_WORKER_STATE_READY,
	health.Degraded: pb.WorkerState_WORKER_STATE_DEGRADED, health.Draining: pb.WorkerState_WORKER_STATE_DRAINING,
	health.NotReady: pb.WorkerState_WORKER_STATE_NOT_READY,
}

var modelStateOf = map[model.State]pb.ModelState{
	model.Loading: pb.ModelState_MODEL_STATE_LOADING, model.Ready: pb.ModelState_MODEL_STATE_READY,
	model.Draining: pb.ModelState_MODEL_STATE_DRAINING, model.Failed: pb.ModelState_MODEL_STATE_FAILED,
}

// report is everything the worker tells of itself, out of what it was judged by.
func (s *Server) report(in health.Input, state health.State, checks []health.Check, files []*pb.ModelFile) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: s.identity.WorkerID, Incarnation: s.identity.Incarnation, Version: s.identity.Version,
		ClassId: model.ClassID(in.Device, model.DefaultKV(in.Device)), State: stateOf[state],
		Device: deviceOf(in.Device, in.Leaked), Load: s.rates.load(in.Models), Progress: progressOf(in.Models), Files: files,
		Vectors: s.vectorStatus(),
	}
	for _, c := range checks {
		r.Checks = append(r.Checks, &pb.HealthCheck{Name: c.Name, Ok: c.OK, Message: c.Message})
	}
	for _, m := range in.Models {
		r.Models = append(r.Models, statusOfModel(m, in.VerifyInterval))
	}
	return r
}

func deviceOf(i engine.DeviceInfo, leaked uint64) *pb.DeviceStatus {
	d := &pb.DeviceStatus{
		Kind: i.Kind, Name: i.Name, Uuid: i.UUID, BytesTotal: i.BytesTotal, BytesFree: i.BytesFree,
		BytesWeights: i.BytesUsed[engine.Weights], BytesKv: i.BytesUsed[engine.KV],
		BytesWorkspace: i.BytesUsed[engine.Workspace], BytesStaging: i.BytesUsed[engine.Staging], BytesPooled: i.BytesPooled,
		PoolHits: i.PoolHits, PoolMisses: i.PoolMisses, FailedFrees: i.FailedFrees,
		LiveBuffers: i.LiveBuffers, LeakedBuffers: leaked,
		Errors: i.Errors, CorrectedErrors: i.CorrectedErrors, PhysicalBytesTotal: i.PhysicalTotal,
		PhysicalBytesFree: i.PhysicalFree, ManagementProblem: i.ManagementProblem, Devices: uint32(max(1, i.Devices)),
	}
	if i.TemperatureC != nil {
		t := int32(*i.TemperatureC)
		d.TemperatureCelsius = &t
	}
	if i.PowerMW != nil {
		p := int32(*i.PowerMW)
		d.PowerMilliwatts = &p
	}
	return d
}

// progressOf is the progress of the step loop nearest its bound: it is the one that may hang.
func progressOf(models []model.Status) *pb.StepProgress {
	p := &pb.StepProgress{}
	var last, running, bound time.Duration
	for _, m := range models {
		st := m.Steps
		if st.StepBound == 0 {
			continue // it has no loop: it is being loaded, or never was as a whole
		}
		p.Steps += st.Steps
		if st.LastStepAge > 0 && (last == 0 || st.LastStepAge < last) {
			last = st.LastStepAge
		}
		if bound == 0 || st.RunningStepAge-st.StepBound > running-bound {
			running, bound = st.RunningStepAge, st.StepBound
		}
	}
	if last > 0 {
		p.LastStepAge = durationpb.New(last)
	}
	if running > 0 {
		p.RunningStepAge = durationpb.New(running)
	}
	if bound > 0 {
		p.StepBound = durationpb.New(bound)
	}
	return p
}

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

// age is a time, unset where there is none.
func age(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

// idleAge is 0 while a request holds a model, and unset out of service.
func idleAge(m model.Status) *durationpb.Duration {
	if m.State != model.Ready {
		return nil
	}
	return durationpb.New(m.IdleAge)
}

// shownSuppressed bounds the suppressed ids of a report: a file may list its whole vocabulary, and a report goes to every scheduler.
const shownSuppressed = 1024

// digestOf is a model's digest in hex, "" while it is not known: of one being loaded, or that failed before all was read.
func digestOf(m model.Status) string {
	if m.Digest == (engine.Digest{}) {
		return ""
	}
	return hex.EncodeToString(m.Digest[:])
}

func resultOf(m model.Status) *pb.LoadResult {
	return &pb.LoadResult{
		ModelDigest: digestOf(m), DeviceBytes: m.DeviceBytes, KvBlocks: uint32(m.Runner.KVBlocks),
		BlockSize: uint32(m.Runner.BlockSize), MaxSequences: uint32(m.Runner.MaxSequences), ContextLength: uint32(m.Context),
		SamplingDefaults: m.Defaults,
	}
}

func capabilitiesOf(f model.Facts) *pb.ModelCapabilities {
	c := &pb.ModelCapabilities{
		Architecture: f.Architecture, Quantisation: f.Quantization, ContextLength: uint32(f.Context),
		Vocabulary: uint32(f.Vocabulary), Parameters: f.Parameters, Tokenizer: f.HasTokenizer, ChatTemplate: f.HasTemplate,
		ChatTemplates: f.Templates,
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
	for _, id := range f.SuppressedIDs[:min(len(f.SuppressedIDs), shownSuppressed)] {
		c.SuppressedTokenIds = append(c.SuppressedTokenIds, uint32(id))
	}
	return c
}
