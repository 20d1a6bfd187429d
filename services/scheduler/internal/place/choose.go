package place

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// Sentinels of Choose.
var (
	// ErrNowhere: no candidate has the model, in memory or on disk.
	ErrNowhere = errors.New("no worker has a file of this name")
	// ErrTooFew: fewer workers than copies wanted can hold one.
	ErrTooFew = errors.New("too few workers for the copies wanted")
)

// Candidate is one worker that takes requests.
type Candidate struct {
	ID string
	// Loaded is whether it has the model, or is loading it.
	Loaded bool
	// HasFile is whether it has the model's file.
	HasFile bool
	// Problem is whether that file cannot be loaded.
	Problem bool
	// Needed and Free are bytes; it fits if Needed <= Free.
	Needed, Free uint64
	// Reclaimable are bytes of other models, not in Free, that it unloads where a load needs them.
	Reclaimable uint64
}

// class orders workers by what a copy costs there.
type class int

const (
	hasIt     class = iota // nothing
	hasRoom                // a load
	makesRoom              // a load, and the place of another model
	cannotNow              // it has the file, and no room for it
	cannot
)

// class is the candidate's.
func (c Candidate) class() class {
	switch {
	case c.Loaded:
		return hasIt
	case !c.HasFile || c.Problem:
		return cannot
	case c.Needed <= c.Free:
		return hasRoom
	case c.Needed-c.Free <= c.Reclaimable:
		return makesRoom
	}
	return cannotNow
}

// Choose returns the ids of the workers that should hold copies of the model, in the order they should be asked: those
// that have it first, then those with room for it, then those that make room, each group by rank. The first n are wanted, the
// others stand by. If none can hold a copy and one is wanted, the first that has the file is returned, which knows best why it
// cannot.
func Choose(model string, n int, from []Candidate) ([]string, error) {
	ranked := slices.Clone(from)
	slices.SortFunc(ranked, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.class(), b.class()), -cmp.Compare(Rank(model, a.ID), Rank(model, b.ID)), cmp.Compare(a.ID, b.ID))
	})
	var able, have []string
	for _, c := range ranked {
		if c.class() <= makesRoom {
			able = append(able, c.ID)
		}
		if c.HasFile {
			have = append(have, c.ID)
		}
	}
	switch {
	case len(able) >= n:
		return able, nil
	case len(able) == 0 && len(have) == 0:
		return nil, fmt.Errorf("model %q: %w", model, ErrNowhere)
	case n == 1:
		return have[:1], nil
	}
	return nil, fmt.Errorf("%d copies of model %q: %d of %d workers can hold one: %w", n, model, len(able), len(from), ErrTooFew)
}

// Rank is the weight of a worker for a model; the highest is chosen.
func Rank(model, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(model)) // never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	x := h.Sum64()
	// FNV leaves ids that differ in their last character close together: mix every bit into every other.
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
