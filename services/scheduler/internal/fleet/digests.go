package fleet

import (
	"fmt"
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// doubtMessages is how many messages a worker has to report a digest that it has served. An
	// answer may overtake the report of a model that was just loaded.
	doubtMessages = 8
	// maxDoubts bounds the digests in doubt.
	maxDoubts = 16
)

// digests checks whether one run of a worker contradicts itself about its models. If it does, it is
// unknown which model computes its answers, so the worker must not be used. The zero value is that
// of a new run.
type digests struct {
	reported      map[string][]string // every digest reported, by model
	doubts        []doubt
	contradiction error  // nil: none; it stays until the worker restarts or loads the model again
	model         string // of contradiction
	isNew         bool   // whether check has not returned the contradiction yet
}

// doubt is a digest that an answer had and that was not reported yet.
type doubt struct {
	model, digest string
	left          int // messages
}

// setModels records a list of models. before is the list that it follows on the same stream; nil if
// a list may have been missed. A model that serves with another digest than before, and was ready
// all the time, was not loaded again: that is a contradiction.
func (d *digests) setModels(before, after []*pb.ModelStatus) {
	if d.contradiction != nil && !ready(find(after, d.model)) {
		d.contradiction, d.model = nil, "" // it is loaded again, or gone
	}
	for _, m := range after {
		if !ready(m) || m.GetModelDigest() == "" {
			continue
		}
		name, digest := m.GetName(), m.GetModelDigest()
		if last := find(before, name); ready(last) && last.GetModelDigest() != digest && d.contradiction == nil {
			d.contradict(name, fmt.Errorf("%w: model %q had digest %s and has %s, and was not loaded between: restart the worker",
				ErrDigest, name, last.GetModelDigest(), digest))
		}
		if !slices.Contains(d.reported[name], digest) {
			if d.reported == nil {
				d.reported = map[string][]string{}
			}
			d.reported[name] = append(d.reported[name], digest)
		}
	}
}

// observe records the digest that an answer states.
func (d *digests) observe(report *pb.WorkerReport, model, digest string) {
	known := func(x doubt) bool { return x.model == model && x.digest == digest }
	if slices.Contains(d.reported[model], digest) || find(report.GetModels(), model) == nil || len(d.doubts) == maxDoubts ||
		slices.ContainsFunc(d.doubts, known) {
		return
	}
	d.doubts = append(d.doubts, doubt{model, digest, doubtMessages})
}

// check decides on the doubts after a message. It reports whether there is a new contradiction.
func (d *digests) check(report *pb.WorkerReport) (contradicts bool) {
	if len(d.doubts) == 0 && !d.isNew {
		return false
	}
	d.doubts = slices.DeleteFunc(d.doubts, func(x doubt) bool { return slices.Contains(d.reported[x.model], x.digest) })
	for i := range d.doubts {
		x := &d.doubts[i]
		if x.left--; x.left <= 0 && d.contradiction == nil {
			d.contradict(x.model, fmt.Errorf("%w: it reports digest %s of model %q and serves %s: restart the worker", ErrDigest,
				find(report.GetModels(), x.model).GetModelDigest(), x.model, x.digest))
		}
	}
	d.doubts = slices.DeleteFunc(d.doubts, func(x doubt) bool { return x.left <= 0 })
	contradicts, d.isNew = d.isNew, false
	return contradicts
}

func (d *digests) contradict(model string, why error) {
	d.contradiction, d.model, d.isNew = why, model, true
}

// find returns the model with a name, or nil.
func find(models []*pb.ModelStatus, name string) *pb.ModelStatus {
	for _, m := range models {
		if m.GetName() == name {
			return m
		}
	}
	return nil
}

func ready(m *pb.ModelStatus) bool { return m.GetState() == pb.ModelState_MODEL_STATE_READY }
