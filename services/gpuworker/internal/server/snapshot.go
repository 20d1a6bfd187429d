package server

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// snapshot is what the worker tells of itself from one pulse to the next. Nothing in it changes, and any number of health
// streams send from it.
type snapshot struct {
	report *pb.WorkerReport
	parts  parts
	at     time.Time // of the look
	over   bool      // the worker drains and no request is left: health streams end
	// changed is closed when a snapshot is out that differs in what is urgent.
	changed <-chan struct{}
}

// parts counts how often the parts of the report have changed: where the counts of two snapshots are equal, the parts are.
type parts struct {
	urgent   urgent
	counts   uint64 // ledger and load: told at a scheduler's interval
	readings uint64 // what moves all the time in them: the same, and nobody decides anew for it
	ages     uint64 // of models and codebooks, and in the texts of checks: as readings are
}

// urgent is what routing needs at once.
type urgent struct{ state, checks, models, files, vectors, over uint64 }

// next are the parts of a snapshot that follows another one.
func (p parts) next(last, now *snapshot) parts {
	was, is := last.report, now.report
	bump := func(n *uint64, same bool) {
		if !same {
			*n++
		}
	}
	bump(&p.urgent.state, was.GetState() == is.GetState())
	bump(&p.urgent.checks, slices.EqualFunc(was.GetChecks(), is.GetChecks(), func(a, b *pb.HealthCheck) bool {
		return a.GetName() == b.GetName() && a.GetOk() == b.GetOk()
	}))
	bump(&p.urgent.models, slices.EqualFunc(was.GetModels(), is.GetModels(), func(a, b *pb.ModelStatus) bool {
		return proto.Equal(steadyModel(a), steadyModel(b))
	}))
	bump(&p.urgent.files, slices.EqualFunc(was.GetFiles(), is.GetFiles(), same))
	bump(&p.urgent.vectors, proto.Equal(steadyVectors(was.GetVectors()), steadyVectors(is.GetVectors())))
	bump(&p.urgent.over, last.over == now.over)
	bump(&p.counts, proto.Equal(steadyDevice(was.GetDevice()), steadyDevice(is.GetDevice())) &&
		proto.Equal(steadyLoad(was.GetLoad()), steadyLoad(is.GetLoad())))
	bump(&p.readings, proto.Equal(was.GetDevice(), is.GetDevice()) && proto.Equal(was.GetLoad(), is.GetLoad()))
	bump(&p.ages, slices.EqualFunc(was.GetModels(), is.GetModels(), same) &&
		slices.EqualFunc(was.GetChecks(), is.GetChecks(), same) && proto.Equal(was.GetVectors(), is.GetVectors()))
	return p
}

func same[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// steadyDevice is a device without its readings. A field that is not named here is steady, so that a new one is told as a
// change until somebody thinks of it.
func steadyDevice(d *pb.DeviceStatus) *pb.DeviceStatus {
	d = proto.CloneOf(d)
	d.TemperatureCelsius, d.PowerMilliwatts, d.PhysicalBytesFree = nil, nil, nil
	return d
}

// steadyLoad is a load without what grows with every token, or with time alone: how long requests wait is decided by how many
// do and how much they bring.
func steadyLoad(l *pb.LoadStatus) *pb.LoadStatus {
	l = proto.CloneOf(l)
	l.TokensPerSecond, l.PrefillTokensPerSecond, l.GeneratedTokens, l.CachedTokens, l.QueueAge = 0, 0, 0, 0, nil
	for _, m := range l.GetModels() {
		m.TokensPerSecond, m.PrefillTokensPerSecond = 0, 0
	}
	return l
}

// steadyModel is a model without its ages.
func steadyModel(m *pb.ModelStatus) *pb.ModelStatus {
	m = proto.CloneOf(m)
	m.VerifiedAge, m.IdleAge = nil, nil
	return m
}

// delta is what a scheduler that has been told the parts in was must be told.
func (n *snapshot) delta(was parts) *pb.WorkerDelta {
	r, is := n.report, n.parts
	d := &pb.WorkerDelta{
		Device: r.GetDevice(), Load: r.GetLoad(), Progress: r.GetProgress(),
		ReadingsOnly: was.urgent == is.urgent && was.counts == is.counts,
	}
	if was.urgent.state != is.urgent.state {
		d.State = r.GetState()
	}
	if was.ages != is.ages || was.urgent.checks != is.urgent.checks {
		d.Checks, d.ChecksChanged = r.GetChecks(), true
	}
	if was.ages != is.ages || was.urgent.models != is.urgent.models {
		d.Models, d.ModelsChanged = r.GetModels(), true
	}
	if was.ages != is.ages || was.urgent.vectors != is.urgent.vectors {
		d.Vectors = r.GetVectors()
	}
	if was.urgent.files != is.urgent.files {
		d.Files, d.FilesChanged = r.GetFiles(), true
	}
	return d
}
