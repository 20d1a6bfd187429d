package route

import "slices"

// pool holds the workers that serve one model.
type pool struct {
	entries []entry // by index
	digests []string
	classes []string
	cached  []mapping // one for each digest whose workers report cached prefixes
	// shortest is the shortest known context of all entries; 0: none is known. A request that fits it
	// fits every entry.
	shortest int64
}

// entry is one worker that serves the model. A decision reads its fields together, so they are
// copied here from several places.
type entry struct {
	load   *ModelLoad
	worker *Load
	model  *Model
	id     string
	hash   uint64 // of id

	slots, context, cache int64 // as in Model; 0: not known
	batchCost             int64 // cost of each running sequence to a new one, in 1/256 tokens

	index         int32 // in Snapshot.Workers
	digest, class int32 // in pool
}

// mapping finds the entries of an index's members.
type mapping struct {
	index   *Index
	entries []int32 // by member: the entry plus 1; 0: none
}

// add adds a worker.
func (p *pool) add(index int, w *Worker, m *Model) {
	e := entry{
		load: w.Load.Of(m.Name), worker: w.Load, model: m, id: w.ID, hash: hashOf(w.ID),
		slots: m.MaxSequences, context: m.ContextLength, cache: m.CacheTokens, index: int32(index),
		digest: indexOf(&p.digests, m.Digest), class: indexOf(&p.classes, m.ClassID),
	}
	e.batchCost = fullBatch << 8 / unknownSlots
	if e.slots > 0 {
		e.batchCost = fullBatch << 8 / e.slots
	}
	if e.context > 0 && (p.shortest == 0 || e.context < p.shortest) {
		p.shortest = e.context
	}
	p.entries = append(p.entries, e)
	x, member := m.Prefixes.member()
	if x == nil {
		return
	}
	i := slices.IndexFunc(p.cached, func(c mapping) bool { return c.index == x })
	if i < 0 {
		i = len(p.cached)
		p.cached = append(p.cached, mapping{index: x, entries: make([]int32, 0, cap(p.entries))})
	}
	c := &p.cached[i]
	for len(c.entries) <= member {
		c.entries = append(c.entries, 0)
	}
	c.entries[member] = int32(len(p.entries))
}

// indexOf returns the index of a name in a list, and appends it if it is not there.
func indexOf(names *[]string, name string) int32 {
	i := slices.Index(*names, name)
	if i < 0 {
		i = len(*names)
		*names = append(*names, name)
	}
	return int32(i)
}

// pool returns the workers that serve a model, or nil.
func (s *Snapshot) pool(model string) *pool {
	if s.pools != nil {
		return s.pools[model]
	}
	made := NewSnapshot(s.Known, s.Workers)
	return made.pools[model]
}
