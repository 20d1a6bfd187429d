package loading

import (
	"errors"
	"fmt"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/placement"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Reachable returns the connected members of a snapshot. The error is a sentinel of package route.
func Reachable(s *fleet.Snapshot) ([]fleet.Member, error) {
	if !s.Route.Known {
		return nil, fmt.Errorf("%w: this scheduler has not heard from its workers yet: try again", route.ErrFleetUnknown)
	}
	var out []fleet.Member
	for _, m := range s.Members {
		if m.Connected {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: none of the %d workers configured can be reached: start one, or check --workers",
			route.ErrNoWorker, len(s.Members))
	}
	return out, nil
}

// choose returns the workers that should load the model, best first. Workers that serve it with
// another digest than the expected one are left out.
func choose(members []fleet.Member, o Order) ([]string, error) {
	name, want := o.Request.GetModel(), o.Request.GetExpectModelDigest()
	var candidates []placement.Candidate
	differ := ""
	for i := range members {
		m := &members[i]
		if state := m.Report.GetState(); state != pb.WorkerState_WORKER_STATE_READY && state != pb.WorkerState_WORKER_STATE_DEGRADED {
			continue
		}
		model := m.Model(name)
		c := candidate(m, name)
		if have := model.GetModelDigest(); c.Loaded && want != "" && have != "" && have != want {
			differ = have
			continue
		}
		if o.OnDemand && model.GetState() == pb.ModelState_MODEL_STATE_FAILED {
			continue
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 && differ == "" {
		return nil, fmt.Errorf("%w: no worker takes requests now: try again", route.ErrNoWorker)
	}
	ids, err := placement.Choose(name, o.wanted(), candidates)
	if errors.Is(err, placement.ErrNowhere) && differ != "" {
		return nil, fmt.Errorf("%w: model %q has digest %s and the request expects %s: unload it first, or leave expect_model_digest out",
			route.ErrDigestMismatch, name, differ, want)
	}
	return ids, err
}

// candidate describes a member to package placement.
func candidate(m *fleet.Member, name string) placement.Candidate {
	state, file := m.Model(name).GetState(), m.File(name)
	var reclaimable uint64
	for _, other := range m.Report.GetModels() {
		if other.GetReclaimable() && other.GetName() != name {
			reclaimable += other.GetLoaded().GetDeviceBytes()
		}
	}
	return placement.Candidate{
		ID:      m.Report.GetWorkerId(),
		Loaded:  state == pb.ModelState_MODEL_STATE_READY || state == pb.ModelState_MODEL_STATE_LOADING,
		HasFile: file != nil, Problem: file.GetProblem() != "",
		Needed: file.GetNeededBytes(), Free: m.Report.GetDevice().GetBytesFree(), Reclaimable: reclaimable,
	}
}
