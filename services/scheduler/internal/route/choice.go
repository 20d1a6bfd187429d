package route

// Choice is a worker that was chosen for a request. Reserve must be called before the request is
// sent.
type Choice struct {
	// Index is the worker's in Snapshot.Workers.
	Index int
	// ClassID is the class of the model on the worker.
	ClassID string
	// Cached is an estimate of the prompt's tokens that are cached there.
	Cached int64
	// Context is the worker's context length, Longest that of all workers which serve the digest;
	// 0: not known.
	Context, Longest int64
	// Reach is the shortest context that may serve the request, if that excluded workers; else 0.
	// It is set also if Pick returns an error.
	Reach int64

	id        string // of the worker
	digest    string
	worker    *Load
	model     *ModelLoad
	prefixes  *Prefixes
	keys      []Key // of the request, those that the worker will have
	tokens    int64
	sequences int64
	prefill   int64
	most      int64 // sequences that the worker may have in all, with those of this request
	inFlight  int64 // requests that this process may have there, with this one
}

// choice returns the choice of an entry with a fit.
func (w *work) choice(entry int32, f fit) Choice {
	e, r := &w.pool.entries[entry], &w.request
	c := Choice{
		Context: e.context, Longest: w.longest, Reach: w.reach,
		Index: int(e.index), ClassID: e.model.ClassID, Cached: min(w.cached[entry], r.Prompt),
		id: e.id, digest: e.model.Digest, worker: e.worker, model: e.load, prefixes: e.model.Prefixes, keys: r.Keys,
		tokens: r.Tokens, sequences: e.slotsFor(r), most: e.limit(f), inFlight: r.MaxInFlight,
	}
	c.prefill = r.Prompt - c.Cached
	for len(c.keys) > 0 && c.keys[0].Tokens <= c.Cached {
		c.keys = c.keys[1:]
	}
	return c
}

// Reserve counts the request on the worker. It returns false, and counts nothing, if others have
// taken the slots since Pick. The bounds hold however many goroutines reserve at once.
func (c *Choice) Reserve() bool {
	if !c.worker.Begin(c.tokens, c.inFlight) {
		return false
	}
	if !c.model.reserve(c.sequences, c.prefill, c.most) {
		c.worker.End(c.tokens)
		return false
	}
	c.prefixes.Expect(c.keys)
	return true
}

// Progress subtracts computed tokens from the worker's load, but never more than were added.
func (c *Choice) Progress(tokens int64) {
	tokens = min(tokens, c.tokens)
	c.tokens -= tokens
	c.worker.Progress(tokens)
}

// Started reports that the prompt is computed. It must be called at most once.
func (c *Choice) Started() {
	c.model.endPrefill(c.prefill)
	c.prefill, c.keys = 0, nil
}

// End removes a reserved request from the worker's load. It must be called once.
func (c *Choice) End() {
	c.prefixes.Unexpect(c.keys) // of a request that never started
	c.model.endPrefill(c.prefill)
	c.model.release(c.sequences)
	c.worker.End(c.tokens)
}

// Crowded reports whether the worker has as many requests of this process as it may have, so that
// the end of one makes room for requests of other models, too.
func (c *Choice) Crowded() bool { return c.inFlight > 0 && c.worker.InFlight() >= c.inFlight }

// Suits reports whether another request could go to the worker, if that had room.
func (c *Choice) Suits(r *Request) bool {
	return (r.Digest == "" || r.Digest == c.digest) && (r.ClassID == "" || r.ClassID == c.ClassID) && !r.skips(c.id) &&
		(c.Context == 0 || r.context(c.Longest) <= c.Context)
}
