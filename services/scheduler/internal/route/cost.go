package route

const (
	// recomputeWeight is the cost of computing a prompt token, relative to waiting for one that is
	// computed for another request. It is above 1 because recomputing a prefix that another worker
	// has cached takes time from all later requests. With 1 or 2, workers recompute each other's
	// prefixes; with 6, hardly more is cached than with 4 (millrace-bench replay).
	recomputeWeight = 4
	// copyShare is how many prompt tokens a worker copies from host memory in the time of computing
	// one, at least. An H200 copies those of an 8B Llama 20 times as fast.
	copyShare = 8
	// fullBatch is the cost of joining a full batch, in prompt tokens that could be computed in
	// that time: steps that share a prompt with decoding sequences take longer. A half full batch
	// costs half of it.
	fullBatch = 8192
	// overHalf is the additional cost of a batch that becomes more than half full. Its steps take
	// longer at once for all its sequences, because the matrix units compute rows in fixed tiles:
	// on an H200, 128 rows take 8 ms and 129 rows 12 ms. A prompt had better wait on a worker with
	// fewer sequences.
	overHalf = 2 * fullBatch
	// unknownSlots is assumed for workers that do not report their slots.
	unknownSlots = 128
	// costTolerance is the difference in tokens below which two costs count as equal, because the
	// numbers of cached tokens are estimates.
	costTolerance = 64
)

// cost estimates the time to first token of a request on a worker, in prompt tokens: its own tokens
// that are not cached there, those that it copies from host memory, those of other requests that go
// before, and the load of the batch. A prefix hit is thereby worth four times its tokens, and a worker loses the request if its load
// exceeds that of another by more than that.
func (e *entry) cost(r *Request, cached, hosted int64) int64 {
	busy := e.load.Busy()
	c := recomputeWeight*max(r.Prompt-cached, 0) + hosted/copyShare + e.load.Prefill() + busy*e.batchCost>>8
	if e.slots > 0 && 2*(busy+e.slotsFor(r)) > e.slots {
		c += overHalf
	}
	return c
}

// hashOf returns the FNV-1a hash of a string, mixed. It is the same in every scheduler.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the last step of MurmurHash3: every bit of h affects every bit of the result.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
