package vectors

import (
	"errors"
	"fmt"
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/place"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// able are the members of a snapshot that have vectors and take requests. The error is one of package route's.
func (v *Vectors) able() ([]fleet.Member, error) {
	members, err := loading.Reachable(v.fleet.Snapshot())
	if err != nil {
		return nil, err
	}
	members = slices.DeleteFunc(members, func(m fleet.Member) bool { return m.Report.GetVectors() == nil || !takes(&m) })
	if len(members) == 0 {
		return nil, fmt.Errorf("%w: no worker that has vector codebooks takes requests now: start one, or try again", route.ErrNoWorker)
	}
	return members, nil
}

// takes is whether a member takes requests.
func takes(m *fleet.Member) bool {
	state := m.Report.GetState()
	return state == pb.WorkerState_WORKER_STATE_READY || state == pb.WorkerState_WORKER_STATE_DEGRADED
}

// draining are the members that drain and have something else, or nobody knows what, under the name of a codebook with the digest given.
func (v *Vectors) draining(name, digest string) (out []fleet.Member) {
	for _, m := range v.fleet.Snapshot().Members {
		b := m.Codebook(name)
		if m.Connected && m.Report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING && b != nil && (digest == "" || b.GetCodebookDigest() != digest) {
			out = append(out, m)
		}
	}
	return out
}

// bytesOf are those of a codebook of a shape; the smallest are taken where it is not told.
func bytesOf(s *pb.CodebookShape) uint64 {
	size := uint64(2)
	if s.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_F32 {
		size = 4
	}
	return times(uint64(s.GetCodewords())*uint64(s.GetDimension()), size)
}

// candidate is a member in place's terms: for a codebook that it has as a file, or that comes to it with so many bytes.
func candidate(m *fleet.Member, name string, comes *pb.CodebookShape) place.Candidate {
	b := m.Codebook(name)
	shape := comes
	if shape == nil {
		shape = b.GetShape()
	}
	return place.Candidate{
		ID: m.Report.GetWorkerId(), Loaded: b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY, HasFile: b != nil || comes != nil,
		Problem: comes == nil && b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK && b.GetProblem() != "",
		Needed:  bytesOf(shape), Free: m.Report.GetDevice().GetBytesFree(),
	}
}

// choose are the ids of the members that should hold n copies of a codebook that they have, in the order in which they are asked: n
// are wanted, the others stand by.
func choose(members []fleet.Member, t target, n int) ([]string, error) {
	var candidates []place.Candidate
	differ := ""
	for i := range members {
		if b := members[i].Codebook(t.codebook); t.digest != "" && b.GetCodebookDigest() != "" && b.GetCodebookDigest() != t.digest {
			differ = b.GetCodebookDigest()
			continue
		}
		candidates = append(candidates, candidate(&members[i], t.codebook, nil))
	}
	ids, err := place.Choose(t.codebook, n, candidates)
	if !errors.Is(err, place.ErrNowhere) {
		return ids, err
	}
	if differ != "" {
		return nil, fmt.Errorf("%w: codebook %q has digest %s and the request expects %s: put the one that is meant, or leave "+
			"expect_codebook_digest out", route.ErrCodebookDigest, t.codebook, differ, t.digest)
	}
	return nil, fmt.Errorf("%w: no worker has a codebook %q: see ListCodebooks for those there are", route.ErrUnknownCodebook, t.codebook)
}

// chosen are the members that should get a codebook: all that have one of its name, so that none stays behind with another one, and
// as many more as make n copies.
func chosen(members []fleet.Member, name string, shape *pb.CodebookShape, n int) ([]fleet.Member, error) {
	var candidates []place.Candidate
	for i := range members {
		candidates = append(candidates, candidate(&members[i], name, shape))
	}
	ids, err := place.Choose(name, n, candidates)
	if err != nil {
		return nil, err
	}
	ids = ids[:n]
	var out []fleet.Member
	more := n
	for i := range members {
		if members[i].Codebook(name) != nil {
			more--
		}
	}
	byID := map[string]*fleet.Member{}
	for i := range members {
		byID[members[i].Report.GetWorkerId()] = &members[i]
		if members[i].Codebook(name) != nil {
			out = append(out, members[i])
		}
	}
	for _, id := range ids {
		if m := byID[id]; m.Codebook(name) == nil && more > 0 {
			more--
			out = append(out, *m)
		}
	}
	return out, nil
}
