package route

const (
	// again is what computing a prompt token costs beside waiting for one that is computed for another: a token that some worker has
	// and another computes again takes time from all who come after.
	again = 4
	// fullBatch is what a full batch costs who joins it, in prompt tokens that could be computed in the time: the steps that a prompt
	// shares with sequences that decode take longer. A batch half full costs half of it.
	fullBatch = 8192
	// overHalf is what a batch more than half full costs beyond that. Its steps take longer at once for all who are in it: matrix units
	// compute so many rows together, on a large GPU half of the places. A prompt rather waits behind others on a worker that has fewer.
	overHalf = 2 * fullBatch
	// unknownPlaces stands for the places of a worker that does not tell how many it has.
	unknownPlaces = 128
	// alike is how many tokens apart two costs count as equal: what is known of prefixes is no finer.
	alike = 64
)

// cost is the time to a request's first token on a worker, in prompt tokens: those of its own that are not cached there, those of
// others that go before, and the company in the batch. A prefix is thereby worth its tokens four times, and a worker that is more loaded
// than another by more than that loses the request to it.
func (e *entry) cost(r *Request, cached int64) int64 {
	busy := e.load.Busy()
	c := again*max(r.Prompt-cached, 0) + e.load.Prefill() + busy*e.company>>8
	if e.places > 0 && 2*(busy+e.needs(r)) > e.places {
		c += overHalf
	}
	return c
}

// hashOf is FNV-1a, mixed: the same in every scheduler.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix spreads a number's bits over all of it.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
