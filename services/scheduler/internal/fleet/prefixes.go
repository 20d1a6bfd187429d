package fleet

import (
	"maps"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// prefixes are the cached prefixes that a worker has reported, by model. The map is immutable, but
// the sets that it points to change. It has only models of the worker's report, which bounds its
// size.
type prefixes map[string]modelPrefixes

// modelPrefixes are those of one model.
type modelPrefixes struct {
	digest string
	keys   *route.Prefixes
}

// of returns the prefixes of a model; nil if none were reported for this digest.
func (p prefixes) of(name, digest string) *route.Prefixes {
	if m := p[name]; m.digest == digest {
		return m.keys
	}
	return nil
}

// apply applies a message of a worker with a report. changed reports whether the result points to
// another set than before. Prefixes of a model that the report does not list are ignored, because a
// worker reports a model first.
func (p prefixes) apply(in *pb.PrefixKeys, report *pb.WorkerReport, index *route.Indexes) (result prefixes, changed bool) {
	name, digest := in.GetModel(), in.GetModelDigest()
	if !lists(report, name, digest) {
		return p, false
	}
	keys := p.of(name, digest)
	if changed = keys == nil || in.GetReset_(); changed {
		p[name].keys.Drop() // also that of another digest
		keys = index.Prefixes(name, digest)
		p = maps.Clone(p)
		if p == nil {
			p = prefixes{}
		}
		p[name] = modelPrefixes{digest, keys}
	}
	keys.Change(in.GetAdded(), in.GetRemoved(), in.GetHosted()...)
	return p, changed
}

// retain returns the prefixes of the models that a new report lists, and drops the others. A model
// that is listed for the first time has an empty set.
func (p prefixes) retain(report *pb.WorkerReport, index *route.Indexes) prefixes {
	result := prefixes{}
	for name, m := range p {
		if lists(report, name, m.digest) {
			result[name] = m
		} else {
			m.keys.Drop()
		}
	}
	for _, m := range report.GetModels() {
		name, digest := m.GetName(), m.GetModelDigest()
		if _, found := result[name]; !found && digest != "" {
			result[name] = modelPrefixes{digest, index.Prefixes(name, digest)}
		}
	}
	return result
}

// drop drops all sets.
func (p prefixes) drop() {
	for _, m := range p {
		m.keys.Drop()
	}
}

// lists reports whether a report has a model with a digest.
func lists(report *pb.WorkerReport, name, digest string) bool {
	for _, m := range report.GetModels() {
		if m.GetName() == name && m.GetModelDigest() == digest {
			return true
		}
	}
	return false
}
