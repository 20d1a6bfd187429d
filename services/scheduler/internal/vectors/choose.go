package vectors

import (
	"errors"
	"fmt"
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/placement"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// able returns the members of the newest snapshot that support vectors and accept requests. The
// error is a sentinel of package route.
func (v *Vectors) able() ([]fleet.Member, error) {
	members, err := loading.Reachable(v.fleet.Snapshot())
	if err != nil {
		return nil, err
	}
	members = slices.DeleteFunc(members, func(m fleet.Member) bool { return m.Report.GetVectors() == nil || !acceptsRequests(&m) })
	if len(members) == 0 {
		return nil, fmt.Errorf("%w: no worker that has vector codebooks takes requests now: start one, or try again", route.ErrNoWorker)
	}
	return members, nil
}

// acceptsRequests reports whether a member accepts new requests.
func acceptsRequests(m *fleet.Member) bool {
	state := m.Report.GetState()
	return state == pb.WorkerState_WORKER_STATE_READY || state == pb.WorkerState_WORKER_STATE_DEGRADED
}

// draining returns the members that drain and have another codebook under the name than the one
// with the digest; an empty digest is unknown, so every codebook counts as another.
func (v *Vectors) draining(name, digest string) (out []fleet.Member) {
	for _, m := range v.fleet.Snapshot().Members {
		b := codebookOn(m.Report, name)
		if m.Connected && m.Report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING && b != nil && (digest == "" || b.GetCodebookDigest() != digest) {
			out = append(out, m)
		}
	}
	return out
}

// bytesOf returns the size of a codebook with a shape. If the shape lacks the type of its
// codewords, it assumes the smallest.
func bytesOf(s *pb.CodebookShape) uint64 {
	size := uint64(2)
	if s.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_F32 {
		size = 4
	}
	return times(uint64(s.GetCodewords())*uint64(s.GetDimension()), size)
}

// candidate describes a member to package placement: for a codebook that it has as a file, or for
// one of shape comes that is about to be sent to it.
func candidate(m *fleet.Member, name string, comes *pb.CodebookShape) placement.Candidate {
	b := codebookOn(m.Report, name)
	shape := comes
	if shape == nil {
		shape = b.GetShape()
	}
	return placement.Candidate{
		ID: m.Report.GetWorkerId(), Loaded: b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY, HasFile: b != nil || comes != nil,
		Problem: comes == nil && b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK && b.GetProblem() != "",
		Needed:  bytesOf(shape), Free: m.Report.GetDevice().GetBytesFree(),
	}
}

// choose returns the ids of the members that should hold n copies of a codebook that they have on
// disk, in the order in which they are asked. The first n are wanted, the others stand by.
func choose(members []fleet.Member, t target, n int) ([]string, error) {
	var candidates []placement.Candidate
	differ := ""
	for i := range members {
		if b := codebookOn(members[i].Report, t.codebook); t.digest != "" && b.GetCodebookDigest() != "" && b.GetCodebookDigest() != t.digest {
			differ = b.GetCodebookDigest()
			continue
		}
		candidates = append(candidates, candidate(&members[i], t.codebook, nil))
	}
	ids, err := placement.Choose(t.codebook, n, candidates)
	if !errors.Is(err, placement.ErrNowhere) {
		return ids, err
	}
	if differ != "" {
		return nil, fmt.Errorf("%w: codebook %q has digest %s and the request expects %s: put the one that is meant, or leave "+
			"expect_codebook_digest out", errCodebookDigest, t.codebook, differ, t.digest)
	}
	return nil, fmt.Errorf("%w: no worker has a codebook %q: see ListCodebooks for those there are", errUnknownCodebook, t.codebook)
}

// putTargets returns the members that should get a codebook: all that have one of its name, so that
// none keeps an old one, and further ones up to n.
func putTargets(members []fleet.Member, name string, shape *pb.CodebookShape, n int) ([]fleet.Member, error) {
	var candidates []placement.Candidate
	for i := range members {
		candidates = append(candidates, candidate(&members[i], name, shape))
	}
	ids, err := placement.Choose(name, n, candidates)
	if err != nil {
		return nil, err
	}
	ids = ids[:n]
	var out []fleet.Member
	more := n
	for i := range members {
		if codebookOn(members[i].Report, name) != nil {
			more--
		}
	}
	byID := map[string]*fleet.Member{}
	for i := range members {
		byID[members[i].Report.GetWorkerId()] = &members[i]
		if codebookOn(members[i].Report, name) != nil {
			out = append(out, members[i])
		}
	}
	for _, id := range ids {
		if m := byID[id]; codebookOn(m.Report, name) == nil && more > 0 {
			more--
			out = append(out, *m)
		}
	}
	return out, nil
}
