package prompt

import (
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// maxBiases is how many biases every engine accepts.
const maxBiases = 1024

// forbid prevents that any of ids, which are ascending, is sampled: by a bias of -inf for each, or,
// if these and the request's own exceed maxBiases, by a list of all other tokens. Both give the
// same tokens.
func forbid(p *engine.SlotParams, ids []int32, vocabulary int) {
	if len(ids) == 0 {
		return
	}
	biases := map[int32]float32{}
	for i, id := range p.BiasIDs {
		biases[id] = p.BiasValues[i]
	}
	for _, id := range ids {
		biases[id] = float32(math.Inf(-1))
	}
	if len(biases) > maxBiases {
		allowOthers(p, ids, vocabulary)
		return
	}
	p.BiasIDs, p.BiasValues = ordered(biases)
}

// allowOthers removes ids from the allowed tokens.
func allowOthers(p *engine.SlotParams, ids []int32, vocabulary int) {
	allowed := p.Allowed
	if allowed == nil {
		for id := range int32(vocabulary) {
			allowed = append(allowed, id)
		}
	}
	left := slices.DeleteFunc(slices.Clone(allowed), func(id int32) bool {
		_, found := slices.BinarySearch(ids, id)
		return found
	})
	if len(left) == 0 {
		// An engine accepts no empty list. Allow one token, and forbid it with the one bias that
		// matters now.
		left = ids[:1:1]
		p.BiasIDs, p.BiasValues = left, []float32{float32(math.Inf(-1))}
	}
	p.Allowed = left
}

// ordered returns biases by ascending id.
func ordered(biases map[int32]float32) (ids []int32, values []float32) {
	for id := range biases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		values = append(values, biases[id])
	}
	return ids, values
}
