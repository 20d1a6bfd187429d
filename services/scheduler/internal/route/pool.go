package route

import "slices"

// pool is the workers that serve one model.
type pool struct {
	entries []entry // by index
	digests []string
	classes []string
	cached  []mapping // one for each digest whose workers tell of cached prefixes
	// shortest is the shortest context of all entries that report one; 0: none does. What fits it fits every entry.
	shortest int64
}

// entry is one worker that serves the model, with what a decision reads of it side by side.
type entry struct {
	load   *ModelLoad
	worker *Load
	model  *Model
	id     string
	hash   uint64 // of id

	places, context, cache int64 // as in Model; 0 is not known
	company                int64 // what a running sequence costs who joins it, in 1/256 tokens

	index         int32 // in Snapshot.Workers
	digest, class int32 // in pool
}

// mapping finds the entries of an index's slots.
type mapping struct {
	index *Index
	slots []int32 // by slot: the entry and 1; 0: none
}

// add takes a worker in.
func (p *pool) add(index int, w *Worker, m *Model) {
	e := entry{
		load: w.Load.Of(m.Name), worker: w.Load, model: m, id: w.ID, hash: hashOf(w.ID),
		places: m.MaxSequences, context: m.ContextLength, cache: m.CacheTokens, index: int32(index),
		digest: number(&p.digests, m.Digest), class: number(&p.classes, m.ClassID),
	}
	e.company = fullBatch << 8 / unknownPlaces
	if e.places > 0 {
		e.company = fullBatch << 8 / e.places
	}
	if e.context > 0 && (p.shortest == 0 || e.context < p.shortest) {
		p.shortest = e.context
	}
	p.entries = append(p.entries, e)
	x, slot := m.Prefixes.place()
	if x == nil {
		return
	}
	at := slices.IndexFunc(p.cached, func(c mapping) bool { return c.index == x })
	if at < 0 {
		at = len(p.cached)
		p.cached = append(p.cached, mapping{index: x, slots: make([]int32, 0, cap(p.entries))})
	}
	c := &p.cached[at]
	for len(c.slots) <= slot {
		c.slots = append(c.slots, 0)
	}
	c.slots[slot] = int32(len(p.entries))
}

// number is the place of a name in a list, where it is added if it is not there.
func number(names *[]string, name string) int32 {
	at := slices.Index(*names, name)
	if at < 0 {
		at = len(*names)
		*names = append(*names, name)
	}
	return int32(at)
}

// pool is the workers that serve a model, or nil.
func (s *Snapshot) pool(model string) *pool {
	if s.pools != nil {
		return s.pools[model]
	}
	made := NewSnapshot(s.Known, s.Workers)
	return made.pools[model]
}
