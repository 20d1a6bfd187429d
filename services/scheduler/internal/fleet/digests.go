package fleet

import (
	"fmt"
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// doubtMessages is how many messages a worker has to report what it has served: an answer may overtake the report that tells of
	// a model loaded just now.
	doubtMessages = 8
	// maxDoubts bounds the answers in doubt at once.
	maxDoubts = 16
)

// digests remembers what one run of a worker has said of its models, and whether it contradicts itself: then what it computes is not
// what a request asked for, and nobody can tell what it is. The zero value knows nothing.
type digests struct {
	told   map[string][]string // every digest reported, by model
	doubts []doubt
	lie    error  // nil unless it contradicts itself; it stays until the worker restarts or reloads the model
	of     string // the model that lie is of
	fresh  bool   // whether lie has not been told yet
}

// doubt is an answer of a digest that was not reported yet.
type doubt struct {
	model, digest string
	left          int // messages
}

// reported takes a list of models; before is the one that it follows on the same stream, nil if something may have been missed.
// A model that serves and has another digest than it had, and was not out of service between, was not loaded anew.
func (d *digests) reported(before, now []*pb.ModelStatus) {
	if d.lie != nil && !ready(find(now, d.of)) {
		d.lie, d.of = nil, "" // it is being loaded anew, or gone
	}
	for _, m := range now {
		if !ready(m) || m.GetModelDigest() == "" {
			continue
		}
		name, digest := m.GetName(), m.GetModelDigest()
		if was := find(before, name); ready(was) && was.GetModelDigest() != digest && d.lie == nil {
			d.refuse(name, fmt.Errorf("%w: model %q had digest %s and has %s, and was not loaded between: restart the worker",
				ErrDigest, name, was.GetModelDigest(), digest))
		}
		if !slices.Contains(d.told[name], digest) {
			if d.told == nil {
				d.told = map[string][]string{}
			}
			d.told[name] = append(d.told[name], digest)
		}
	}
}

// served takes what an answer said of itself.
func (d *digests) served(report *pb.WorkerReport, model, digest string) {
	known := func(x doubt) bool { return x.model == model && x.digest == digest }
	if slices.Contains(d.told[model], digest) || find(report.GetModels(), model) == nil || len(d.doubts) == maxDoubts ||
		slices.ContainsFunc(d.doubts, known) {
		return
	}
	d.doubts = append(d.doubts, doubt{model, digest, doubtMessages})
}

// judge looks at the doubts when a message has come; true: the worker was found to lie by it.
func (d *digests) judge(report *pb.WorkerReport) (found bool) {
	if len(d.doubts) == 0 && !d.fresh {
		return false
	}
	d.doubts = slices.DeleteFunc(d.doubts, func(x doubt) bool { return slices.Contains(d.told[x.model], x.digest) })
	for i := range d.doubts {
		x := &d.doubts[i]
		if x.left--; x.left <= 0 && d.lie == nil {
			d.refuse(x.model, fmt.Errorf("%w: it reports digest %s of model %q and serves %s: restart the worker", ErrDigest,
				find(report.GetModels(), x.model).GetModelDigest(), x.model, x.digest))
		}
	}
	d.doubts = slices.DeleteFunc(d.doubts, func(x doubt) bool { return x.left <= 0 })
	found, d.fresh = d.fresh, false
	return found
}

func (d *digests) refuse(model string, why error) { d.lie, d.of, d.fresh = why, model, true }

// find is the model of that name, or nil.
func find(models []*pb.ModelStatus, name string) *pb.ModelStatus {
	for _, m := range models {
		if m.GetName() == name {
			return m
		}
	}
	return nil
}

func ready(m *pb.ModelStatus) bool { return m.GetState() == pb.ModelState_MODEL_STATE_READY }
