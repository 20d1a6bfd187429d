package reference

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/philox"
)

// sampling is the purpose of a draw of tokens: the third word of the counter.
const sampling = 0

// Choice is one token that was chosen by the rules of docs/sampling.md, with the results of each
// rule. Slices are by token id.
type Choice struct {
	Processed []float32
	Weights   []float32 // nil if greedy, like all following fields except Token
	Masses    []uint64  // in units of 2^-40
	// The ids that each filter kept, ascending. A filter that is off keeps all.
	TopK, TypicalP, TopP, MinP []int32
	Random                     uint64
	Total, Threshold           uint64 // masses
	Token                      int32  // -1: every token is excluded
}

// Choose chooses the token at a position. history has every token before it, and mask may be nil.
// Probabilities returns how often each token is drawn; Choose returns the one that is drawn, by the
// arithmetic of the engines in float32 and integers.
func Choose(logits []float32, p *engine.SlotParams, history []int32, position int32, mask []uint32) Choice {
	c := Choice{Processed: process(logits, p, history, position, mask), Token: -1}
	top := slices.Max(c.Processed)
	if math.IsInf(float64(top), -1) {
		return c
	}
	if p.Temperature == 0 {
		c.Token = int32(slices.Index(c.Processed, top))
		return c
	}
	temperature := max(p.Temperature, 0x1p-126)
	for id, x := range c.Processed {
		w := float32(1)
		if x != top {
			w = exp((x - top) / temperature)
		}
		m := uint64(math.RoundToEven(float64(w) * 0x1p40))
		c.Weights, c.Masses = append(c.Weights, w), append(c.Masses, m)
		if m != 0 {
			c.TopK = append(c.TopK, int32(id))
		}
	}
	c.filter(p, top, temperature)
	c.Random = philox.Bits(p.Seed, [4]uint32{uint32(position), uint32(p.OutputIndex), sampling, 0})
	c.Total = c.mass(c.MinP)
	c.Threshold, _ = bits.Mul64(c.Random, c.Total)
	sum := uint64(0)
	for _, id := range c.MinP {
		if sum += c.Masses[id]; sum > c.Threshold {
			c.Token = id
			break
		}
	}
	return c
}

// process applies mask, allowed, suppressed, bias and penalties, each operation rounded to float32.
func process(logits []float32, p *engine.SlotParams, history []int32, position int32, mask []uint32) []float32 {
	forbidden := float32(math.Inf(-1))
	out := slices.Clone(logits)
	for i := range out {
		if mask != nil && mask[i/32]>>(i%32)&1 == 0 || p.Allowed != nil && !slices.Contains(p.Allowed, int32(i)) ||
			position-p.PromptLength < p.MinTokens && slices.Contains(p.Suppressed, int32(i)) {
			out[i] = forbidden
		}
	}
	for i, id := range p.BiasIDs {
		out[id] += p.BiasValues[i]
	}
	if p.PenaltyWindow >= 0 {
		history = history[max(0, len(history)-int(p.PenaltyWindow)):]
	}
	counts := map[int32]int{}
	for _, id := range history {
		counts[id]++
	}
	for id, n := range counts {
		x := out[id]
		if x == forbidden {
			continue
		}
		if x > 0 {
			x /= p.RepetitionPenalty
		} else {
			x = float32(x * p.RepetitionPenalty)
		}
		x -= float32(p.FrequencyPenalty * float32(n))
		x -= p.PresencePenalty
		if math.IsNaN(float64(x)) {
			x = forbidden
		}
		out[id] = x
	}
	return out
}

// filter applies top-k, typical-p, top-p and min-p to the ids with a mass, which are in TopK.
func (c *Choice) filter(p *engine.SlotParams, top, temperature float32) {
	likely := func(id int32) float32 { return -c.Processed[id] }
	if k := int(p.TopK); k > 0 && k < len(c.TopK) {
		c.TopK = slices.Sorted(slices.Values(order(c.TopK, likely)[:k]))
	}
	c.TypicalP = c.TopK
	if p.TypicalP < 1 {
		total, mean := float64(c.mass(c.TopK)), 0.0
		logWeight := func(id int32) float64 {
			if c.Processed[id] == top {
				return 0
			}
			return float64((c.Processed[id] - top) / temperature)
		}
		for _, id := range c.TopK {
			mean += float64(float64(c.Masses[id]) * logWeight(id))
		}
		mean /= total
		all := math.Log(total / 0x1p40)
		c.TypicalP = c.reach(order(c.TopK, func(id int32) float32 {
			return float32(math.Abs((all - logWeight(id)) - (all - mean)))
		}), p.TypicalP)
	}
	c.TopP = c.TypicalP
	if p.TopP < 1 {
		c.TopP = c.reach(order(c.TypicalP, likely), p.TopP)
	}
	best := float32(0)
	for _, id := range c.TopP {
		best = max(best, c.Weights[id])
	}
	floor := float32(p.MinP * best)
	c.MinP = slices.DeleteFunc(slices.Clone(c.TopP), func(id int32) bool { return c.Weights[id] < floor })
}

// order returns ids sorted by a key, ascending, with the lowest id first among equals.
func order(ids []int32, key func(int32) float32) []int32 {
	return slices.SortedFunc(slices.Values(ids), func(a, b int32) int {
		return cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(a, b))
	})
}

// reach returns the shortest prefix of ids whose masses reach a share of the total, sorted by id.
func (c *Choice) reach(ids []int32, share float32) []int32 {
	total := c.mass(ids)
	target := uint64(max(1, min(math.Ceil(float64(share)*float64(total)), float64(total))))
	sum := uint64(0)
	for i, id := range ids {
		if sum += c.Masses[id]; sum >= target {
			ids = ids[:i+1]
			break
		}
	}
	return slices.Sorted(slices.Values(ids))
}

func (c *Choice) mass(ids []int32) (sum uint64) {
	for _, id := range ids {
		sum += c.Masses[id]
	}
	return sum
}

// exp returns the engines' e^x for x <= 0, bit for bit.
func exp(x float32) float32 {
	if x < -87.3 {
		return 0
	}
	const magic = 0x1.8p23 // adding it rounds to an integer
	n := fma(x, 1.44269504, magic) - magic
	f := fma(n, 2.12194440e-4, fma(n, -0.693359375, x))
	p := float32(1.0 / 5040)
	for _, coefficient := range []float32{1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5} {
		p = fma(p, f, coefficient)
	}
	p = fma(p, float32(f*f), f) + 1
	return float32(math.Ldexp(float64(p), int(n))) // exact: no result is subnormal
}

// fma returns a*b + c, rounded to float32 once.
func fma(a, b, c float32) float32 {
	product := float64(a) * float64(b) // exact
	sum := product + float64(c)
	part := sum - product
	rest := (product - (sum - part)) + (float64(c) - part) // the rest of the sum
	if raw := math.Float64bits(sum); rest != 0 && raw&1 == 0 {
		// Round to odd, so that the second rounding to float32 is correct.
		if (rest > 0) == (sum > 0) {
			raw++
		} else {
			raw--
		}
		sum = math.Float64frombits(raw)
	}
	return float32(sum)
}
