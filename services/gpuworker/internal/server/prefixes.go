package server

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/prefixhash"
)

// maxPrefixKeys bounds the keys of one message to 64 KiB, and to 128 KiB if all are in host memory.
// That is far below the limit of a stream, and short enough that a report which waits for it is not
// late.
const maxPrefixKeys = 8192

// prefixKeys returns the keys of a request's prefixes in the prefix cache, the shortest first. It
// leaves out prefixes of no tokens.
func prefixKeys(in *pb.GenerateRequest, promptTokens int) []batch.PrefixKey {
	prefixes, total := prefixhash.Of(in)
	keys := make([]batch.PrefixKey, 0, len(prefixes))
	for _, p := range prefixes {
		if tokens := p.Tokens(total, promptTokens); tokens > 0 {
			keys = append(keys, batch.PrefixKey{Key: p.Key, Tokens: tokens})
		}
	}
	return keys
}

// prefixCache is the prefix cache of a loaded model. A reload has another journal.
type prefixCache struct {
	name, digest string
	journal      prefixJournal
}

// prefixJournal has the keys that were added to a prefix cache and removed from it. The step loop
// does not wait for its readers.
type prefixJournal interface {
	// Prefixes returns the changes since a position, and the position to continue from; 0 is the
	// beginning. If reset is true, the reader must discard the keys that it has: added is the whole
	// cache. hosted are those of added that are in host memory; both are sorted.
	Prefixes(since uint64) (next uint64, reset bool, added, removed, hosted []uint64)
}

func prefixCachesOf(models *model.Manager) (all []prefixCache) {
	for _, inst := range models.Instances() {
		if inst.Loop != nil { // nil: its load failed
			all = append(all, prefixCache{inst.Name, hex.EncodeToString(inst.Digest[:]), inst.Loop})
		}
	}
	return all
}

// prefixSubscription is what one scheduler has of the prefix caches. One goroutine uses it.
type prefixSubscription struct {
	readAt    time.Time
	positions map[string]prefixPosition // by model
}

// prefixPosition is how far a journal was read.
type prefixPosition struct {
	journal prefixJournal
	next    uint64
}

// reset sends all keys again with the next changes.
func (p *prefixSubscription) reset() { p.positions = nil }

// changes returns the messages that bring a scheduler up to date. reported says whether the
// scheduler has the model from a report: keys of other models must wait for it. The first message
// of a model has Reset set, so that the scheduler discards keys of an earlier load; it is sent even
// if the cache is empty.
func (p *prefixSubscription) changes(caches []prefixCache, reported func(name, digest string) bool) (all []*pb.PrefixKeys) {
	p.readAt = time.Now()
	positions := make(map[string]prefixPosition, len(caches))
	for _, c := range caches {
		if !reported(c.name, c.digest) {
			continue
		}
		last, subscribed := p.positions[c.name]
		if subscribed = subscribed && last.journal == c.journal; !subscribed {
			last.next = 0
		}
		next, reset, added, removed, hosted := c.journal.Prefixes(last.next)
		positions[c.name] = prefixPosition{c.journal, next}
		all = append(all, prefixMessages(c, reset || !subscribed, added, removed, hosted)...)
	}
	p.positions = positions
	return all
}

// prefixMessages returns the messages of one model's changes, and none if nothing changed.
func prefixMessages(c prefixCache, reset bool, added, removed, hosted []uint64) (all []*pb.PrefixKeys) {
	for reset || len(added)+len(removed) > 0 {
		m := &pb.PrefixKeys{Model: c.name, ModelDigest: c.digest, Reset_: reset}
		n := min(len(removed), maxPrefixKeys)
		m.Removed, removed = removed[:n], removed[n:]
		n = min(len(added), maxPrefixKeys-n)
		m.Added, added = added[:n], added[n:]
		if n > 0 {
			end, found := slices.BinarySearch(hosted, m.Added[n-1])
			if found {
				end++
			}
			m.Hosted, hosted = hosted[:end], hosted[end:]
		}
		all, reset = append(all, m), false
	}
	return all
}
