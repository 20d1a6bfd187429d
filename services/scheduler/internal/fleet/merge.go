package fleet

import (
	"fmt"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// merge applies a message to the last report and returns the new one; reports are never changed once they are made.
// changed is whether anything differs that somebody decides by: the progress of steps and readings do not count. The first
// message must be full.
func merge(last *pb.WorkerReport, in *pb.HealthResponse) (report *pb.WorkerReport, changed bool, err error) {
	switch event := in.GetEvent().(type) {
	case *pb.HealthResponse_Full:
		if event.Full.GetWorkerId() == "" || event.Full.GetIncarnation() == "" {
			return nil, false, fmt.Errorf("%w: full report without worker_id or incarnation", ErrGap)
		}
		return event.Full, true, nil
	case *pb.HealthResponse_Delta:
		if last == nil {
			return nil, false, fmt.Errorf("%w: a delta came before the full report", ErrGap)
		}
		return applied(last, event.Delta), !event.Delta.GetReadingsOnly(), nil
	case *pb.HealthResponse_Heartbeat:
		if last == nil {
			return nil, false, fmt.Errorf("%w: a heartbeat came before the full report", ErrGap)
		}
		if event.Heartbeat.GetProgress() == nil {
			return last, false, nil
		}
		return applied(last, &pb.WorkerDelta{Progress: event.Heartbeat.GetProgress()}), false, nil
	case *pb.HealthResponse_PrefixKeys: // kept beside the report
		if last == nil {
			return nil, false, fmt.Errorf("%w: cached prefixes came before the full report", ErrGap)
		}
		return last, false, nil
	}
	return nil, false, fmt.Errorf("%w: a message without a known event", ErrGap)
}

// applied is a new report: the last one with what the delta sets.
func applied(last *pb.WorkerReport, d *pb.WorkerDelta) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: last.GetWorkerId(), Incarnation: last.GetIncarnation(), ClassId: last.GetClassId(), Version: last.GetVersion(),
		State: last.GetState(), Checks: last.GetChecks(), Device: last.GetDevice(), Load: last.GetLoad(),
		Progress: last.GetProgress(), Models: last.GetModels(), Files: last.GetFiles(),
	}
	if d.GetState() != pb.WorkerState_WORKER_STATE_UNSPECIFIED {
		r.State = d.GetState()
	}
	if d.GetChecksChanged() {
		r.Checks = d.GetChecks()
	}
	if d.GetDevice() != nil {
		r.Device = d.GetDevice()
	}
	if d.GetLoad() != nil {
		r.Load = d.GetLoad()
	}
	if d.GetProgress() != nil {
		r.Progress = d.GetProgress()
	}
	if d.GetModelsChanged() {
		r.Models = d.GetModels()
	}
	if d.GetFilesChanged() {
		r.Files = d.GetFiles()
	}
	return r
}
