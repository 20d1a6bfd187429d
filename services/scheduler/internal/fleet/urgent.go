package fleet

import (
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// urgent is whether a delta brings more than numbers. Lists come with ages in them that always move, and often with nothing else.
func urgent(before *pb.WorkerReport, d *pb.WorkerDelta) bool {
	switch {
	case d.GetReadingsOnly():
		return false
	case d.GetState() != pb.WorkerState_WORKER_STATE_UNSPECIFIED, d.GetFilesChanged():
		return true
	case d.GetModelsChanged() && !slices.EqualFunc(before.GetModels(), d.GetModels(), sameModel):
		return true
	case d.GetVectors() != nil && !sameVectors(before.GetVectors(), d.GetVectors()):
		return true
	}
	return d.GetChecksChanged() && !slices.EqualFunc(before.GetChecks(), d.GetChecks(), sameCheck)
}

// sameModel is whether a model can be used as before.
func sameModel(a, b *pb.ModelStatus) bool {
	return a.GetName() == b.GetName() && a.GetState() == b.GetState() && a.GetModelDigest() == b.GetModelDigest() &&
		a.GetClassId() == b.GetClassId() && a.GetContextLength() == b.GetContextLength() && a.GetProblem() == b.GetProblem() &&
		a.GetLoaded().GetMaxSequences() == b.GetLoaded().GetMaxSequences()
}

func sameCheck(a, b *pb.HealthCheck) bool {
	return a.GetName() == b.GetName() && a.GetOk() == b.GetOk()
}
