package server

import (
	"encoding/hex"
	"sync"
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

// report is everything the worker tells of itself now.
func (s *Server) report() *pb.WorkerReport {
	models := s.models.Loaded()
	info, err := s.models.Device().Info()
	state, checks := s.assess(models, info, err)
	r := &pb.WorkerReport{
		WorkerId: s.identity.WorkerID, Incarnation: s.identity.Incarnation, Version: s.identity.Version,
		ClassId: model.ClassID(info, model.DefaultKV(info)), State: stateOf[state], Device: deviceOf(info),
		Load: s.rates.load(models), Progress: progressOf(models), Files: s.files.get(s.models.Files),
	}
	for _, c := range checks {
		r.Checks = append(r.Checks, &pb.HealthCheck{Name: c.Name, Ok: c.OK, Message: c.Message})
	}
	for _, m := range models {
		r.Models = append(r.Models, statusOfModel(m))
	}
	return r
}

func deviceOf(i engine.DeviceInfo) *pb.DeviceStatus {
	d := &pb.DeviceStatus{
		Kind: i.Kind, Name: i.Name, Uuid: i.UUID, BytesTotal: i.BytesTotal, BytesFree: i.BytesFree,
		BytesWeights: i.BytesUsed[engine.Weights], BytesKv: i.BytesUsed[engine.KV],
		BytesWorkspace: i.BytesUsed[engine.Workspace], BytesStaging: i.BytesUsed[engine.Staging], BytesPooled: i.BytesPooled,
		PoolHits: i.PoolHits, PoolMisses: i.PoolMisses, FailedFrees: i.FailedFrees, LiveBuffers: i.LiveBuffers,
		Errors: i.Errors, CorrectedErrors: i.CorrectedErrors, PhysicalBytesTotal: i.PhysicalTotal,
		PhysicalBytesFree: i.PhysicalFree, ManagementProblem: i.ManagementProblem,
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

func statusOfModel(m model.Status) *pb.ModelStatus {
	out := &pb.ModelStatus{Name: m.Name, State: modelStateOf[m.State]}
	if m.State == model.Loading {
		return out
	}
	out.ModelDigest, out.ContextLength, out.ClassId = hex.EncodeToString(m.Digest[:]), uint32(m.Context), m.ClassID
	out.Capabilities, out.Loaded = capabilitiesOf(m.Facts), resultOf(m)
	out.VerifiedAge = durationpb.New(m.VerifiedAge)
	if m.Problem != nil {
		out.Problem = m.Problem.Error()
	}
	return out
}

func resultOf(m model.Status) *pb.LoadResult {
	return &pb.LoadResult{
		ModelDigest: hex.EncodeToString(m.Digest[:]), DeviceBytes: m.DeviceBytes, KvBlocks: uint32(m.Runner.KVBlocks),
		BlockSize: uint32(m.Runner.BlockSize), MaxSequences: uint32(m.Runner.MaxSequences), ContextLength: uint32(m.Context),
	}
}

func capabilitiesOf(f model.Facts) *pb.ModelCapabilities {
	c := &pb.ModelCapabilities{
		Architecture: f.Architecture, Quantisation: f.Quantization, ContextLength: uint32(f.Context),
		Vocabulary: uint32(f.Vocabulary), Parameters: f.Parameters, Tokenizer: f.HasTokenizer, ChatTemplate: f.HasTemplate,
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
	return c
}

// fileList remembers the model files for a while: they are asked for many times a second and change rarely.
type fileList struct {
	mu      sync.Mutex
	read    time.Time // end of the last reading; zero before
	reading bool      // whether one is under way
	files   []*pb.ModelFile
}

const fileListAge = 2 * time.Second

// get is the list as last read. Only the first call waits for a reading; an aged list is read anew beside its callers,
// as a slow disk must not silence the health streams: schedulers would give the worker up.
func (l *fileList) get(list func() []model.Entry) []*pb.ModelFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.read.IsZero():
		l.files, l.read = modelFiles(list()), time.Now()
	case time.Since(l.read) >= fileListAge && !l.reading:
		l.reading = true
		go func() {
			files := modelFiles(list())
			l.mu.Lock()
			defer l.mu.Unlock()
			l.files, l.read, l.reading = files, time.Now(), false
		}()
	}
	return l.files
}

func modelFiles(entries []model.Entry) []*pb.ModelFile {
	files := make([]*pb.ModelFile, 0, len(entries))
	for _, f := range entries {
		out := &pb.ModelFile{Name: f.Name, FileBytes: f.Bytes}
		if f.Problem != nil {
			out.Problem = f.Problem.Error()
		} else {
			out.NeededBytes, out.Capabilities = f.WeightBytes, capabilitiesOf(f.Facts)
		}
		files = append(files, out)
	}
	return files
}
