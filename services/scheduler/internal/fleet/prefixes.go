package fleet

import (
	"maps"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// prefixes are the cached prefixes that a worker has told of, by model. The map is never changed once it is made; what it points
// to is. Only models of the worker's report are in it, so that it is no longer than that.
type prefixes map[string]prefixesOf

// prefixesOf is one model's.
type prefixesOf struct {
	digest string
	keys   *route.Prefixes
}

// of is what routing sees of a model; nil where nothing was told of this digest.
func (p prefixes) of(name, digest string) *route.Prefixes {
	if is := p[name]; is.digest == digest {
		return is.keys
	}
	return nil
}

// told applies a message of a worker whose report lists some models, and returns what is known then; changed is whether it
// points elsewhere than before. A model that is not listed is not kept: a worker tells of it in its report first.
func (p prefixes) told(in *pb.PrefixKeys, report *pb.WorkerReport, all *route.Indexes) (is prefixes, changed bool) {
	name, digest := in.GetModel(), in.GetModelDigest()
	if !lists(report, name, digest) {
		return p, false
	}
	keys := p.of(name, digest)
	if changed = keys == nil || in.GetReset_(); changed {
		p[name].keys.Drop() // of another digest too
		keys = all.Prefixes(name, digest)
		p = maps.Clone(p)
		if p == nil {
			p = prefixes{}
		}
		p[name] = prefixesOf{digest, keys}
	}
	keys.Change(in.GetAdded(), in.GetRemoved())
	return p, changed
}

// listed are the prefixes of the models that a new report lists; those of a model that it lists for the first time are empty.
func (p prefixes) listed(report *pb.WorkerReport, all *route.Indexes) prefixes {
	is := prefixes{}
	for name, of := range p {
		if lists(report, name, of.digest) {
			is[name] = of
		} else {
			of.keys.Drop()
		}
	}
	for _, m := range report.GetModels() {
		name, digest := m.GetName(), m.GetModelDigest()
		if _, there := is[name]; !there && digest != "" {
			is[name] = prefixesOf{digest, all.Prefixes(name, digest)}
		}
	}
	return is
}

// drop voids all: the worker is not followed any more, or tells everything anew.
func (p prefixes) drop() {
	for _, of := range p {
		of.keys.Drop()
	}
}

// lists says whether a report has a model of this digest.
func lists(report *pb.WorkerReport, name, digest string) bool {
	for _, m := range report.GetModels() {
		if m.GetName() == name && m.GetModelDigest() == digest {
			return true
		}
	}
	return false
}
