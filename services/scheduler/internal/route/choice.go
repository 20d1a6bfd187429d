package route

// Choice is a worker chosen for a request. Take it before the request goes there.
type Choice struct {
	// Index is the worker's in Snapshot.Workers.
	Index int
	// ClassID is the class of the model on the worker.
	ClassID string
	// Cached is how many of the prompt's tokens it has, estimated.
	Cached int64
	// Context is the worker's; Longest is that of the workers which serve the digest. 0 is not known.
	Context, Longest int64
	// Reach comes with an error too: the shortest context that may serve the request, if that left workers out; else 0.
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
	most      int64 // sequences that the worker may have of all, this request's included
	inFlight  int64 // requests that it may have, this one included
}

// choice is the choice of an entry with room of a kind.
func (w *work) choice(at int32, is room) Choice {
	e, r := &w.pool.entries[at], &w.request
	c := Choice{
		Context: e.context, Longest: w.longest, Reach: w.reach,
		Index: int(e.index), ClassID: e.model.ClassID, Cached: min(w.cached[at], r.Prompt),
		id: e.id, digest: e.model.Digest, worker: e.worker, model: e.load, prefixes: e.model.Prefixes, keys: r.Keys,
		tokens: r.Tokens, sequences: e.needs(r), most: e.most(is), inFlight: r.MaxInFlight,
	}
	c.prefill = r.Prompt - c.Cached
	for len(c.keys) > 0 && c.keys[0].Tokens <= c.Cached {
		c.keys = c.keys[1:]
	}
	return c
}

// Take counts the request at the worker; false: others took the room meanwhile, and nothing is counted. A bound is never passed,
// however many take at once.
func (c *Choice) Take() bool {
	if !c.worker.Begin(c.tokens, c.inFlight) {
		return false
	}
	if !c.model.take(c.sequences, c.prefill, c.most) {
		c.worker.End(c.tokens)
		return false
	}
	c.prefixes.Expect(c.keys)
	return true
}

// Progress takes computed tokens off the worker's load, never more than the request may need.
func (c *Choice) Progress(tokens int64) {
	tokens = min(tokens, c.tokens)
	c.tokens -= tokens
	c.worker.Progress(tokens)
}

// Started says, once, that the prompt is computed.
func (c *Choice) Started() {
	c.model.started(c.prefill)
	c.prefill, c.keys = 0, nil
}

// End takes a request that was taken off the worker, once.
func (c *Choice) End() {
	c.prefixes.Unexpect(c.keys) // of one that never started
	c.model.started(c.prefill)
	c.model.ended(c.sequences)
	c.worker.End(c.tokens)
}

// Crowded is whether the worker has as many requests of this process as it may: who ends one then makes room for other models too.
func (c *Choice) Crowded() bool { return c.inFlight > 0 && c.worker.InFlight() >= c.inFlight }

// Suits is whether another request may go to the worker too, were there room for it.
func (c *Choice) Suits(r *Request) bool {
	return (r.Digest == "" || r.Digest == c.digest) && (r.ClassID == "" || r.ClassID == c.ClassID) && !r.passes(c.id) &&
		(c.Context == 0 || r.context(c.Longest) <= c.Context)
}
