package reference

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Processed returns the logits after mask, allowed, suppressed, bias and penalties, in that order.
// history has every token before position, and mask may be nil.
func Processed(logits []float64, p *engine.SlotParams, history []int32, position int32, mask []uint32) []float64 {
	out := slices.Clone(logits)
	for i := range out {
		if mask != nil && mask[i/32]>>(i%32)&1 == 0 || p.Allowed != nil && !slices.Contains(p.Allowed, int32(i)) {
			out[i] = math.Inf(-1)
		}
	}
	if position-p.PromptLength < p.MinTokens {
		for _, id := range p.Suppressed {
			out[id] = math.Inf(-1)
		}
	}
	for i, id := range p.BiasIDs {
		out[id] += float64(p.BiasValues[i])
	}
	if p.PenaltyWindow >= 0 {
		history = history[max(0, len(history)-int(p.PenaltyWindow)):]
	}
	counts := map[int32]int{}
	for _, id := range history {
		counts[id]++
	}
	for id, n := range counts {
		if out[id] > 0 {
			out[id] /= float64(p.RepetitionPenalty)
		} else {
			out[id] *= float64(p.RepetitionPenalty)
		}
		out[id] -= float64(p.PresencePenalty) + float64(n)*float64(p.FrequencyPenalty)
	}
	return out
}

// Probabilities returns the probabilities of a draw from processed logits at a temperature above 0,
// after top-k, typical-p, top-p and min-p. Each filter gets the renormalised result of the one
// before. Tokens that cannot be drawn have 0.
func Probabilities(processed []float64, p *engine.SlotParams) []float64 {
	scaled := make([]float64, len(processed))
	ids := []int{}
	for i, v := range processed {
		scaled[i] = v / float64(p.Temperature)
		if !math.IsInf(v, -1) {
			ids = append(ids, i)
		}
	}
	probs := Softmax(scaled)
	// keep shortens ids to those with the lowest keys whose mass reaches a share of the total.
	keep := func(key func(id int) float64, share float64) {
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(key(a), key(b)) })
		sum, total := 0.0, 0.0
		for _, id := range ids {
			total += probs[id]
		}
		for i, id := range ids {
			if sum += probs[id]; sum >= share*total {
				ids = ids[:i+1]
				return
			}
		}
	}
	likely := func(id int) float64 { return -probs[id] }
	if k := int(p.TopK); k > 0 && k < len(ids) {
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(likely(a), likely(b)) })
		ids = ids[:k]
	}
	if p.TypicalP < 1 {
		total, entropy := 0.0, 0.0
		for _, id := range ids {
			total += probs[id]
		}
		for _, id := range ids {
			if q := probs[id] / total; q > 0 {
				entropy -= q * math.Log(q)
			}
		}
		slices.Sort(ids)
		keep(func(id int) float64 { return math.Abs(-math.Log(probs[id]/total) - entropy) }, float64(p.TypicalP))
	}
	if p.TopP < 1 {
		slices.Sort(ids)
		keep(likely, float64(p.TopP))
	}
	best, total := 0.0, 0.0
	for _, id := range ids {
		best = math.Max(best, probs[id])
	}
	ids = slices.DeleteFunc(ids, func(id int) bool { return probs[id] < float64(p.MinP)*best })
	for _, id := range ids {
		total += probs[id]
	}
	out := make([]float64, len(processed))
	for _, id := range ids {
		out[id] = probs[id] / total
	}
	return out
}
