package placement

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

// Candidate is one worker that accepts requests.
type Candidate struct {
	ID string
	// Loaded is whether it has the model, or loads it.
	Loaded bool
	// HasFile is whether it has the model's file.
	HasFile bool
	// Problem is whether that file is unusable.
	Problem bool
	// Needed and Free are bytes; the model fits if Needed <= Free.
	Needed, Free uint64
	// Reclaimable are bytes of other models that it would unload for this one. They are not in
	// Free.
	Reclaimable uint64
}

// cost orders workers by the price of a copy there.
type cost int

const (
	hasIt     cost = iota // nothing
	hasRoom               // a load
	makesRoom             // a load, and another model's memory
	cannotNow             // it has the file but no memory for it
	cannot
)

// cost classifies the candidate.
func (c Candidate) cost() cost {
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

// Choose returns the ids of the workers that should hold copies of the model, in the order in which
// they should be asked: first those that have it, then those that have memory for it, then those
// that would unload another model, each group by Rank. The first n are wanted, the others stand by.
// If no worker can hold a copy and one is wanted, Choose returns the first worker that has the
// file, because that worker knows best why it cannot load it.
func Choose(model string, n int, from []Candidate) ([]string, error) {
	ranked := slices.Clone(from)
	slices.SortFunc(ranked, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.cost(), b.cost()), -cmp.Compare(Rank(model, a.ID), Rank(model, b.ID)), cmp.Compare(a.ID, b.ID))
	})
	var able, have []string
	for _, c := range ranked {
		if c.cost() <= makesRoom {
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

// Rank is the weight of a worker for a model in rendezvous hashing (Thaler and Ravishankar, 1998);
// the highest is chosen.
func Rank(model, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(model)) // never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	x := h.Sum64()
	// FNV-1a leaves ids that differ in their last character close together. Mix every bit into
	// every other, as the finalizer of splitmix64 does.
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
