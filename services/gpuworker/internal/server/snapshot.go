package server

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// snapshot is the worker's state at one pulse. It is immutable, so that all subscribers send from
// the same one.
type snapshot struct {
	report    *pb.WorkerReport
	revisions revisions
	at        time.Time // of the assessment
	extension Extension // has a part in the report; nil: none has
	last      bool      // the worker stops and no request is left: health streams end
	// changed is closed when a snapshot is published whose urgent parts differ.
	changed <-chan struct{}
}

// revisions counts the changes of each part of the report. A part is equal in two snapshots if its
// count is.
type revisions struct {
	urgent   urgentRevisions
	counts   uint64 // device memory and load: sent at a subscriber's interval
	readings uint64 // their readings, which change at every pulse: likewise, and routing does not depend on them
	ages     uint64 // of models and the extension, and in the texts of checks: sent as readings are
}

// urgentRevisions are the parts that routing needs at once.
type urgentRevisions struct{ state, checks, models, files, extension, last uint64 }

// next returns the revisions of the snapshot that follows another one.
func (v revisions) next(last, next *snapshot) revisions {
	a, b := last.report, next.report
	count := func(n *uint64, same bool) {
		if !same {
			*n++
		}
	}
	count(&v.urgent.state, a.GetState() == b.GetState())
	count(&v.urgent.checks, slices.EqualFunc(a.GetChecks(), b.GetChecks(), func(a, b *pb.HealthCheck) bool {
		return a.GetName() == b.GetName() && a.GetOk() == b.GetOk()
	}))
	count(&v.urgent.models, slices.EqualFunc(a.GetModels(), b.GetModels(), func(a, b *pb.ModelStatus) bool {
		return proto.Equal(steadyModel(a), steadyModel(b))
	}))
	count(&v.urgent.files, slices.EqualFunc(a.GetFiles(), b.GetFiles(), same))
	steady, whole := true, true
	if next.extension != nil {
		steady, whole = next.extension.Same(a, b)
	}
	count(&v.urgent.extension, steady)
	count(&v.urgent.last, last.last == next.last)
	count(&v.counts, proto.Equal(steadyDevice(a.GetDevice()), steadyDevice(b.GetDevice())) &&
		proto.Equal(steadyLoad(a.GetLoad()), steadyLoad(b.GetLoad())))
	count(&v.readings, proto.Equal(a.GetDevice(), b.GetDevice()) && proto.Equal(a.GetLoad(), b.GetLoad()))
	count(&v.ages, slices.EqualFunc(a.GetModels(), b.GetModels(), same) &&
		slices.EqualFunc(a.GetChecks(), b.GetChecks(), same) && whole)
	return v
}

func same[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// steadyDevice returns a device without its readings. A field that is not named here counts as
// steady, so that a new field is sent as a change until it is added here.
func steadyDevice(d *pb.DeviceStatus) *pb.DeviceStatus {
	d = proto.CloneOf(d)
	d.TemperatureCelsius, d.PowerMilliwatts, d.PhysicalBytesFree = nil, nil, nil
	return d
}

// steadyLoad returns a load without the fields that change with every token or with time. The
// queue's age is one of them: routing depends on how many requests wait and on their tokens.
func steadyLoad(l *pb.LoadStatus) *pb.LoadStatus {
	l = proto.CloneOf(l)
	l.TokensPerSecond, l.PrefillTokensPerSecond, l.GeneratedTokens, l.CachedTokens, l.QueueAge = 0, 0, 0, 0, nil
	for _, m := range l.GetModels() {
		m.TokensPerSecond, m.PrefillTokensPerSecond = 0, 0
	}
	return l
}

// steadyModel returns a model without its ages.
func steadyModel(m *pb.ModelStatus) *pb.ModelStatus {
	m = proto.CloneOf(m)
	m.VerifiedAge, m.IdleAge = nil, nil
	return m
}

// delta returns the changes for a subscriber that has the parts with the revisions in have.
func (s *snapshot) delta(have revisions) *pb.WorkerDelta {
	r, v := s.report, s.revisions
	d := &pb.WorkerDelta{
		Device: r.GetDevice(), Load: r.GetLoad(), Progress: r.GetProgress(),
		ReadingsOnly: have.urgent == v.urgent && have.counts == v.counts,
	}
	if have.urgent.state != v.urgent.state {
		d.State = r.GetState()
	}
	if have.ages != v.ages || have.urgent.checks != v.urgent.checks {
		d.Checks, d.ChecksChanged = r.GetChecks(), true
	}
	if have.ages != v.ages || have.urgent.models != v.urgent.models {
		d.Models, d.ModelsChanged = r.GetModels(), true
	}
	if s.extension != nil && (have.ages != v.ages || have.urgent.extension != v.urgent.extension) {
		s.extension.Delta(d, r)
	}
	if have.urgent.files != v.urgent.files {
		d.Files, d.FilesChanged = r.GetFiles(), true
	}
	return d
}
