package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
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

// report returns the worker's report from an assessment and its input.
func (s *Server) report(in health.Input, state health.State, checks []health.Check, files []*pb.ModelFile) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: s.cfg.WorkerID, Incarnation: s.cfg.Incarnation, Version: s.cfg.Version,
		ClassId: model.ClassID(in.Device, model.DefaultKV(in.Device)), State: stateOf[state],
		Device: deviceOf(in.Device, in.Leaked), Load: s.rates.load(in.Models), Progress: progressOf(in.Models), Files: files,
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

// progressOf returns the progress of the step loop that is nearest to its bound, because that one
// may hang.
func progressOf(models []model.Status) *pb.StepProgress {
	p := &pb.StepProgress{}
	var last, running, bound time.Duration
	for _, m := range models {
		st := m.Steps
		if st.StepBound == 0 {
			continue // it has no loop: its load runs or failed
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

// loadOf returns the load of the models on a device for balancers. Failed models serve no requests
// and have none.
func loadOf(models []model.Status, device engine.DeviceInfo) loadreport.Load {
	var l loadreport.Load
	for _, m := range models {
		if m.State == model.Failed {
			continue
		}
		l.HeldBlocks += int64(m.Steps.HeldBlocks())
		l.KVBlocks += int64(m.Steps.TotalBlocks)
		l.Running += int64(m.Steps.Running)
		l.Waiting += int64(m.Steps.Waiting)
		l.Places += int64(m.Runner.MaxSequences)
	}
	l.MemoryLimit = device.BytesTotal
	l.MemoryUsed = device.BytesTotal - min(device.BytesFree, device.BytesTotal)
	return l
}

// currentLoad returns the load of the last pulse, and none before the first.
func (s *Server) currentLoad() loadreport.Load {
	if l := s.load.Load(); l != nil {
		return *l
	}
	return loadreport.Load{}
}
