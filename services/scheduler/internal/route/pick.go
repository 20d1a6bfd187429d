package route

import (
	"errors"
	"slices"
	"sync"
)

// Pick chooses the worker that should serve r. The error is a *Refusal, or itself one of two that say that workers serve it and none
// takes it now: ErrTight if one has a place for a smaller request, else ErrWorkersFull.
func Pick(s *Snapshot, r Request) (Choice, error) {
	if !s.Known {
		return Choice{}, unknown(s)
	}
	p := s.pool(r.Model)
	if p == nil {
		return Choice{}, absent(s, &r)
	}
	w := works.Get().(*work)
	defer works.Put(w)
	w.pool, w.request = p, r
	defer w.forget()
	if err := w.filter(s); err != nil {
		return Choice{Reach: w.reach}, err
	}
	w.look()
	is := w.weigh()
	switch {
	case is == none:
		return Choice{Reach: w.reach}, ErrWorkersFull
	case is == tight:
		return Choice{Reach: w.reach}, ErrTight
	case r.RoutingKey != "":
		return w.choice(w.pointed(), is), nil
	}
	return w.choice(w.cheapest(), is), nil
}

// work is one decision. It is kept for later ones: a decision allocates nothing.
type work struct {
	pool    *pool
	request Request
	able    []int32 // entries that may serve the request, in the end those with the best room
	cached  []int64 // by entry: tokens of the request that it has
	costs   []int64 // by place in able, once they are weighed
	longest int64   // context of the workers that serve the request's digest and class, those that have failed it included
	reach   int64   // as in Choice
}

var works = sync.Pool{New: func() any { return &work{} }}

// forget lets go of what the decision was about.
func (w *work) forget() { w.pool, w.request, w.longest, w.reach = nil, Request{}, 0, 0 }

// filter sets able; the error says why nobody is.
func (w *work) filter(s *Snapshot) error {
	r := &w.request
	w.able = w.able[:0]
	digest, class := int32(-1), int32(-1) // any
	if r.Digest != "" {
		if digest = int32(slices.Index(w.pool.digests, r.Digest)); digest < 0 {
			return otherDigest(r, w.digests())
		}
	} else if len(w.pool.digests) > 1 {
		switch digests := w.digests(); len(digests) {
		case 0:
		case 1:
			digest = int32(slices.Index(w.pool.digests, digests[0]))
		default:
			return ambiguous(r, digests)
		}
	}
	if r.ClassID != "" {
		if class = int32(slices.Index(w.pool.classes, r.ClassID)); class < 0 {
			return otherClass(r)
		}
	}
	for i := range w.pool.entries {
		e := &w.pool.entries[i]
		if digest >= 0 && e.digest != digest || class >= 0 && e.class != class {
			continue
		}
		if e.context > w.longest && !slices.Contains(r.Unloaded, e.id) {
			w.longest = e.context
		}
		if !r.passes(e.id) {
			w.able = append(w.able, int32(i))
		}
	}
	if len(w.able) == 0 {
		return w.nobody(s)
	}
	return w.fit(s)
}

// fit removes from able the workers whose context is too short; a context that is not known is long enough. The longest context counts
// even if its workers have failed the request: a shorter answer elsewhere would be another answer. A prompt that fits no context goes to
// a worker with the longest one, which refuses it with the exact length.
func (w *work) fit(s *Snapshot) error {
	needs := w.request.context(w.longest)
	if needs <= w.pool.shortest || w.pool.shortest == 0 {
		return nil
	}
	before := len(w.able)
	w.able = slices.DeleteFunc(w.able, func(i int32) bool {
		context := w.pool.entries[i].context
		return context != 0 && context < needs
	})
	if len(w.able) < before {
		w.reach = needs
	}
	if len(w.able) == 0 {
		return w.tooShort(s, needs)
	}
	return nil
}

// nobody says why no worker that has not been tried is able.
func (w *work) nobody(s *Snapshot) error {
	err := w.absence(s)
	var refusal *Refusal
	if w.request.Context > 0 && errors.As(err, &refusal) {
		refusal.Unready = w.unready(s, w.request.Context)
	}
	return err
}

func (w *work) absence(s *Snapshot) error {
	r := &w.request
	switch digests := w.digests(); {
	case len(digests) == 0:
		return absent(s, r)
	case r.Digest != "" && !slices.Contains(digests, r.Digest):
		return otherDigest(r, digests)
	}
	return otherClass(r)
}

// digests are those of the workers that have not been tried, sorted.
func (w *work) digests() (all []string) {
	for i := range w.pool.entries {
		e := &w.pool.entries[i]
		if !w.request.passes(e.id) && !slices.Contains(all, e.model.Digest) {
			all = append(all, e.model.Digest)
		}
	}
	slices.Sort(all)
	return all
}

// look sets cached.
func (w *work) look() {
	w.cached = append(w.cached[:0], make([]int64, len(w.pool.entries))...)
	if len(w.request.Keys) == 0 {
		return
	}
	for _, c := range w.pool.cached {
		l := lookup{mapping: c, keys: w.request.Keys, out: w.cached}
		l.run()
	}
}

// weigh leaves in able those with the best room, and sets their costs.
func (w *work) weigh() (is room) {
	is = none
	best := w.able[:0]
	for _, i := range w.able {
		e := &w.pool.entries[i]
		has := e.roomFor(&w.request, w.cached[i])
		if has > is || has == none {
			continue
		}
		if has < is {
			is, best, w.costs = has, best[:0], w.costs[:0]
		}
		best, w.costs = append(best, i), append(w.costs, e.cost(&w.request, w.cached[i]))
	}
	w.able = best
	return is
}

// pointed is who of able the routing key points to: the highest of the hashes of the key and a worker's id, so that a worker that
// comes or goes moves no keys but its own.
func (w *work) pointed() (entry int32) {
	key, highest := hashOf(w.request.RoutingKey), uint64(0)
	for _, i := range w.able {
		if h := mix(key ^ w.pool.entries[i].hash); h >= highest {
			entry, highest = i, h
		}
	}
	return entry
}

// cheapest is, of two drawn from those of able with about the lowest cost, the one that has fewer tokens to compute. Schedulers that
// see the same fleet do not thereby all choose the same.
func (w *work) cheapest() (entry int32) {
	bound := slices.Min(w.costs) + alike
	equal := w.able[:0]
	for n, i := range w.able {
		if w.costs[n] <= bound {
			equal = append(equal, i)
		}
	}
	first := equal[w.request.Tie%uint64(len(equal))]
	second := equal[(w.request.Tie>>32)%uint64(len(equal))]
	if w.pool.entries[second].worker.Tokens() < w.pool.entries[first].worker.Tokens() {
		return second
	}
	return first
}
