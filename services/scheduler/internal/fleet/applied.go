package fleet

import pb "github.com/millrace/millrace/proto/gen/millrace/v1"

// applied is a new report: the last one with what the delta sets.
func applied(last *pb.WorkerReport, d *pb.WorkerDelta) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: last.GetWorkerId(), Incarnation: last.GetIncarnation(), ClassId: last.GetClassId(), Version: last.GetVersion(),
		State: last.GetState(), Checks: last.GetChecks(), Device: last.GetDevice(), Load: last.GetLoad(),
		Progress: last.GetProgress(), Models: last.GetModels(), Files: last.GetFiles(),
		Vectors: last.GetVectors(),
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
	if d.GetVectors() != nil {
		r.Vectors = d.GetVectors()
	}
	return r
}
