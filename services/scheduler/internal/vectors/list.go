package vectors

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
)

// listKey is the key by which codebooks of several workers are merged.
type listKey struct {
	name, digest, problem string
	state                 pb.CodebookState
}

// List merges the reports of the workers: one entry for each name, state and digest. The error is a
// status.
func (v *Vectors) List() (*pb.ListCodebooksResponse, error) {
	members, err := loading.Reachable(v.fleet.Snapshot())
	if err != nil {
		return nil, statusOf(err)
	}
	merged := map[listKey]*pb.CodebookInfo{}
	for i := range members {
		for _, b := range members[i].Report.GetVectors().GetCodebooks() {
			key := listKey{b.GetName(), b.GetCodebookDigest(), b.GetProblem(), b.GetState()}
			one := merged[key]
			if one == nil {
				one = proto.CloneOf(b) // reports are immutable
				one.WorkerIds = nil
				merged[key] = one
			}
			one.WorkerIds = append(one.WorkerIds, members[i].Report.GetWorkerId())
			one.DeviceBytes = max(one.GetDeviceBytes(), b.GetDeviceBytes())
			if b.GetVerifiedAge().AsDuration() > one.GetVerifiedAge().AsDuration() { // of the copy whose check is due first
				one.VerifiedAge = b.GetVerifiedAge()
			}
		}
	}
	out := &pb.ListCodebooksResponse{}
	for _, one := range merged {
		slices.Sort(one.WorkerIds)
		out.Codebooks = append(out.Codebooks, one)
	}
	slices.SortFunc(out.Codebooks, func(a, b *pb.CodebookInfo) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), -cmp.Compare(a.GetState(), b.GetState()),
			cmp.Compare(a.GetCodebookDigest(), b.GetCodebookDigest()), cmp.Compare(a.GetProblem(), b.GetProblem()))
	})
	return out, nil
}
