package server

import (
	"encoding/hex"
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// maxPrefixKeys is how many keys one message carries at most: 64 KiB, far below what a stream takes, and short enough that a
// report which waits behind it is not late.
const maxPrefixKeys = 8192

// prefixSource is where the keys of a model's cached prefixes are read. Its step loop does not wait for its readers.
type prefixSource interface {
	// Prefixes says which keys came to the cache and went from it since a call that answered with at = since; 0 knows nothing.
	// reset: what the reader knows is void, and added is all there is.
	Prefixes(since uint64) (at uint64, reset bool, added, removed []uint64)
}

// cached is a model whose cached prefixes are told. Another load of it has another source.
type cached struct {
	name, digest string
	source       prefixSource
}

// cachedOf lists the models of a manager.
func cachedOf(models *model.Manager) (all []cached) {
	for _, inst := range models.Instances() {
		if inst.Loop != nil { // one whose load failed has none
			all = append(all, cached{inst.Name, hex.EncodeToString(inst.Digest[:]), inst.Loop})
		}
	}
	return all
}

// prefixReader is what one scheduler has been told of cached prefixes. One goroutine uses it.
type prefixReader struct {
	asked time.Time // when it looked last
	known map[string]knownPrefixes
}

// knownPrefixes is how far a scheduler knows a model.
type knownPrefixes struct {
	source prefixSource
	at     uint64
}

// forget makes the next messages tell everything anew.
func (r *prefixReader) forget() { r.known = nil }

// changes are the messages that bring a scheduler, which knows the models in listed, to what is cached now. The first of a model
// that it knows nothing of voids what it may have of that name; a model without a cached prefix has that one alone.
func (r *prefixReader) changes(models []cached, listed func(name, digest string) bool) (all []*pb.PrefixKeys) {
	r.asked = time.Now()
	known := make(map[string]knownPrefixes, len(models))
	for _, m := range models {
		if !listed(m.name, m.digest) {
			continue // it is told of the model first
		}
		was, begun := r.known[m.name]
		if begun = begun && was.source == m.source; !begun {
			was.at = 0
		}
		at, reset, added, removed := m.source.Prefixes(was.at)
		known[m.name] = knownPrefixes{m.source, at}
		all = append(all, pieces(m, reset || !begun, added, removed)...)
	}
	r.known = known
	return all
}

// pieces are the messages of one model's change; none where there is nothing to say.
func pieces(m cached, reset bool, added, removed []uint64) (all []*pb.PrefixKeys) {
	for reset || len(added)+len(removed) > 0 {
		p := &pb.PrefixKeys{Model: m.name, ModelDigest: m.digest, Reset_: reset}
		n := min(len(removed), maxPrefixKeys)
		p.Removed, removed = removed[:n], removed[n:]
		n = min(len(added), maxPrefixKeys-n)
		p.Added, added = added[:n], added[n:]
		all, reset = append(all, p), false
	}
	return all
}
