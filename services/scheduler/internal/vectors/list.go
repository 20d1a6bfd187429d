package vectors

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
)

// shelf is what codebooks are merged by.
type shelf struct {
	name, digest, problem string
	state                 pb.CodebookState
}

// List merges what the workers report: one entry for each name, state and digest. The error is a status.
func (v *Vectors) List() (*pb.ListCodebooksResponse, error) {
	members, err := loading.Reachable(v.fleet.Snapshot())
	if err != nil {
		return nil, fault.Status(err)
	}
	merged := map[shelf]*pb.CodebookInfo{}
	for i := range members {
		for _, b := range members[i].Report.GetVectors().GetCodebooks() {
			key := shelf{b.GetName(), b.GetCodebookDigest(), b.GetProblem(), b.GetState()}
			one := merged[key]
			if one == nil {
				one = proto.CloneOf(b) // reports are never changed
				one.WorkerIds = nil
				merged[key] = one
			}
			one.WorkerIds = append(one.WorkerIds, members[i].Report.GetWorkerId())
			one.DeviceBytes = max(one.GetDeviceBytes(), b.GetDeviceBytes())
			if b.GetVerifiedAge().AsDuration() > one.GetVerifiedAge().AsDuration() { // the check that is due first
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
