package route

import (
	"sync"
	"sync/atomic"
)

// Indexes are the indexes of all models, each by name and digest, under one bound. Safe for concurrent use; the zero value is
// empty.
type Indexes struct {
	held atomic.Int64

	mu sync.Mutex
	of map[indexKey]*shared // guarded by mu
}

type indexKey struct{ model, digest string }

// shared is an index and how many Prefixes are in it.
type shared struct {
	index Index
	users int
}

// Prefixes makes the empty set of a worker's prefixes of a model, in the model's index; of nil, one in no index. Drop it.
func (i *Indexes) Prefixes(model, digest string) *Prefixes {
	if i == nil {
		return &Prefixes{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	key := indexKey{model, digest}
	s := i.of[key]
	if s == nil {
		s = &shared{index: Index{held: &i.held}}
		if i.of == nil {
			i.of = map[indexKey]*shared{}
		}
		i.of[key] = s
	}
	s.users++
	return newPrefixes(&s.index, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(i.of, key)
		}
	})
}

// Len is how many prefixes are kept, each counted once for each worker that has it. Invariant: Len() <= MaxHeld.
func (i *Indexes) Len() int64 { return i.held.Load() }
