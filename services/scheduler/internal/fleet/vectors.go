package fleet

import (
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Codebook is a codebook on the member, in any state, or nil.
func (m *Member) Codebook(name string) *pb.CodebookInfo {
	for _, b := range m.Report.GetVectors().GetCodebooks() {
		if b.GetName() == name {
			return b
		}
	}
	return nil
}

// vectorsOf is what a worker reports of vectors in routing's terms; nil where it has none.
func vectorsOf(report *pb.WorkerReport) *route.Vectors {
	is := report.GetVectors()
	if is == nil {
		return nil
	}
	v := &route.Vectors{
		MaxTrainings: int64(is.GetMaxTrainings()), FreeDevice: report.GetDevice().GetBytesFree(), FreeSpool: is.GetFreeSpoolBytes(),
	}
	for _, b := range is.GetCodebooks() {
		v.Codebooks = append(v.Codebooks, route.Codebook{Name: b.GetName(), Digest: b.GetCodebookDigest(), State: stateOf(b)})
	}
	return v
}

// stateOf is a codebook's state in routing's terms. What this release does not know serves nothing.
func stateOf(b *pb.CodebookInfo) route.CodebookState {
	switch {
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY:
		return route.CodebookReady
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_FAILED:
		return route.CodebookFailed
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK && b.GetProblem() == "":
		return route.CodebookOnDisk
	}
	return route.CodebookUnusable
}

// sameVectors is whether codebooks can be used and trainings begun as before.
func sameVectors(a, b *pb.VectorStatus) bool {
	return a.GetTrainings() == b.GetTrainings() && a.GetMaxTrainings() == b.GetMaxTrainings() &&
		slices.EqualFunc(a.GetCodebooks(), b.GetCodebooks(), func(a, b *pb.CodebookInfo) bool {
			return a.GetName() == b.GetName() && a.GetState() == b.GetState() && a.GetCodebookDigest() == b.GetCodebookDigest() &&
				a.GetProblem() == b.GetProblem()
		})
}
