package route

import (
	"errors"
	"slices"
	"sync"
)

// Pick chooses the worker that should serve r. The error is a *Refusal, unless workers serve the
// model and none can accept the request now: then it is ErrTooLarge if one has room for a smaller
// request, else ErrWorkersFull.
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
	defer w.reset()
	if err := w.filter(s); err != nil {
		return Choice{Reach: w.reach}, err
	}
	w.lookUpPrefixes()
	best := w.score()
	switch {
	case best == fitFull:
		return Choice{Reach: w.reach}, ErrWorkersFull
	case best == fitTooLarge:
		return Choice{Reach: w.reach}, ErrTooLarge
	case r.RoutingKey != "":
		return w.choice(w.byRoutingKey(), best), nil
	}
	return w.choice(w.cheapest(), best), nil
}

// work is the memory of one decision. It is pooled, so that a decision allocates nothing.
type work struct {
	pool       *pool
	request    Request
	candidates []int32 // entries that may serve the request; after score, those with the best fit
	cached     []int64 // by entry: tokens of the prompt that are cached there
	costs      []int64 // of candidates, in the same order, after score
	longest    int64   // context of the workers with the request's digest and class, including those that have failed it
	reach      int64   // as in Choice
}

var works = sync.Pool{New: func() any { return &work{} }}

// reset drops the references to the request and the snapshot.
func (w *work) reset() { w.pool, w.request, w.longest, w.reach = nil, Request{}, 0, 0 }

// filter sets candidates. It returns an error if no worker is one.
func (w *work) filter(s *Snapshot) error {
	r := &w.request
	w.candidates = w.candidates[:0]
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
		if !r.skips(e.id) {
			w.candidates = append(w.candidates, int32(i))
		}
	}
	if len(w.candidates) == 0 {
		return w.noCandidate(s)
	}
	return w.filterContext(s)
}

// filterContext removes the candidates whose context is too short. A context that is not known is
// long enough. The longest context counts even if its workers have failed the request, because a
// worker with a shorter one would give a shorter answer, which is another answer. A prompt that
// fits no context goes to a worker with the longest one, which refuses it with the exact length.
func (w *work) filterContext(s *Snapshot) error {
	needs := w.request.context(w.longest)
	if needs <= w.pool.shortest || w.pool.shortest == 0 {
		return nil
	}
	before := len(w.candidates)
	w.candidates = slices.DeleteFunc(w.candidates, func(i int32) bool {
		context := w.pool.entries[i].context
		return context != 0 && context < needs
	})
	if len(w.candidates) < before {
		w.reach = needs
	}
	if len(w.candidates) == 0 {
		return w.tooShort(s, needs)
	}
	return nil
}

// noCandidate returns the refusal of a request that no worker may serve which has not failed it.
func (w *work) noCandidate(s *Snapshot) error {
	err := w.mismatch(s)
	var refusal *Refusal
	if w.request.Context > 0 && errors.As(err, &refusal) {
		refusal.Unready = w.unready(s, w.request.Context)
	}
	return err
}

func (w *work) mismatch(s *Snapshot) error {
	r := &w.request
	switch digests := w.digests(); {
	case len(digests) == 0:
		return absent(s, r)
	case r.Digest != "" && !slices.Contains(digests, r.Digest):
		return otherDigest(r, digests)
	}
	return otherClass(r)
}

// digests returns those of the workers that have not failed the request, sorted.
func (w *work) digests() (all []string) {
	for i := range w.pool.entries {
		e := &w.pool.entries[i]
		if !w.request.skips(e.id) && !slices.Contains(all, e.model.Digest) {
			all = append(all, e.model.Digest)
		}
	}
	slices.Sort(all)
	return all
}

// lookUpPrefixes sets cached.
func (w *work) lookUpPrefixes() {
	w.cached = append(w.cached[:0], make([]int64, len(w.pool.entries))...)
	if len(w.request.Keys) == 0 {
		return
	}
	for _, m := range w.pool.cached {
		l := lookup{mapping: m, keys: w.request.Keys, out: w.cached}
		l.run()
	}
}

// hosted is how many of an entry's cached tokens it has in host memory alone.
func (w *work) hosted(entry int32) int64 {
	if w.cached[entry] == 0 {
		return 0
	}
	return w.pool.entries[entry].model.Prefixes.Hosted(w.request.Keys, w.cached[entry])
}

// score reduces candidates to those with the best fit, sets their costs and returns that fit.
func (w *work) score() (best fit) {
	best = fitFull
	kept := w.candidates[:0]
	for _, i := range w.candidates {
		e := &w.pool.entries[i]
		f := e.fitOf(&w.request, w.cached[i])
		if f > best || f == fitFull {
			continue
		}
		if f < best {
			best, kept, w.costs = f, kept[:0], w.costs[:0]
		}
		kept, w.costs = append(kept, i), append(w.costs, e.cost(&w.request, w.cached[i], w.hosted(i)))
	}
	w.candidates = kept
	return best
}

// byRoutingKey returns the candidate with the highest hash of the routing key and its id
// (rendezvous hashing): a worker that joins or leaves moves only the keys that it serves.
func (w *work) byRoutingKey() (entry int32) {
	key, highest := hashOf(w.request.RoutingKey), uint64(0)
	for _, i := range w.candidates {
		if h := mix(key ^ w.pool.entries[i].hash); h >= highest {
			entry, highest = i, h
		}
	}
	return entry
}

// cheapest draws two of the candidates whose cost is about the lowest, and returns the one with
// fewer outstanding tokens (the power of two choices). The draw keeps several schedulers, which see
// the same fleet, from choosing the same worker.
func (w *work) cheapest() (entry int32) {
	bound := slices.Min(w.costs) + costTolerance
	equal := w.candidates[:0]
	for n, i := range w.candidates {
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
