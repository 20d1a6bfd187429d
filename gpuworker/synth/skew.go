package synth

import (
	"fmt"
	"maps"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// mostTokens is the largest share of the tokens that use one expert in a skewed mixture: logits of a
// random row are below zero for half of the tokens, however large the row is.
const mostTokens = 0.45

const skewSeed = 0x736b6577 // of the orders of experts

// Skewed returns the shape with routers by which the expert of rank r of a layer is used by a share
// of the tokens that follows 1/r^exponent, up to 45 %. Each layer has an order of its own. The
// returned share is that of the most loaded expert among all choices; with exponent 0 choices are even.
// The error wraps ErrShape if the shape has no mixture, or if exponent is not 0 to 4.
func (s Shape) Skewed(exponent float64) (Shape, float64, error) {
	p, err := newPlan(s)
	if err != nil {
		return s, 0, err
	}
	share := 0.0
	for _, layer := range p.layout.Desc.Layers {
		if e := layer.MLP.Experts; e.Count > 0 {
			share = max(share, popularity(e, exponent)[0]/float64(e.Used))
		}
	}
	if share == 0 || s.Family == nil || !(exponent >= 0 && exponent <= 4) {
		return s, 0, fmt.Errorf("a skew of %v for %q, want 0 to 4 and a mixture of experts: %w", exponent, s.Name, ErrShape)
	}
	if exponent == 0 {
		return s, share, nil
	}
	family := *s.Family
	family.Keys, family.Skew = maps.Clone(family.Keys), exponent
	s.Name, s.Family = fmt.Sprintf("%s-skew%v", s.Name, exponent), &family
	return s, share, nil
}

// popularity returns the share of tokens that use each expert, by rank. They add up to the experts that
// a token uses.
func popularity(e engine.Experts, exponent float64) []float64 {
	shares := make([]float64, e.Count)
	even := float64(e.Used) / float64(e.Count)
	low, high := 0.0, float64(e.Used)*math.Pow(float64(e.Count), exponent)
	for range 100 { // bisection: the factor of 1/r^exponent
		middle, sum := (low+high)/2, 0.0
		for i := range shares {
			shares[i] = min(middle/math.Pow(float64(i+1), exponent), max(mostTokens, even))
			sum += shares[i]
		}
		if sum < float64(e.Used) {
			low = middle
		} else {
			high = middle
		}
	}
	return shares
}

// routerScales returns a factor for each row of a router, in a random order. A logit is normal; the row
// is chosen if it exceeds a threshold that all rows share, so its factor is the quotient of the normal
// quantiles of the even share and of its own. Nil: the mixture cannot be skewed, or is not.
func routerScales(e engine.Experts, exponent float64, s stream) []float32 {
	even := float64(e.Used) / float64(e.Count)
	if exponent == 0 || even >= mostTokens {
		return nil
	}
	quantile := func(share float64) float64 { return math.Sqrt2 * math.Erfinv(1-2*share) }
	scales := make([]float32, e.Count)
	for i, share := range popularity(e, exponent) {
		scales[i] = float32(quantile(even) / quantile(share))
	}
	for i := len(scales) - 1; i > 0; i-- {
		j := s.word(uint64(i)) % uint64(i+1)
		scales[i], scales[j] = scales[j], scales[i]
	}
	return scales
}
