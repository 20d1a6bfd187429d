package sim

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// mix hashes x into h. Every bit of both affects every bit of the result.
func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return h ^ h>>32
}

// ratio of the geometric distribution: every token is 0.9 times as likely as the one before it.
const ratio = 0.9

// distribution is a geometric distribution over the ids base, base+1, ..., modulo the vocabulary.
type distribution struct {
	base, vocab int
	logRest     float64 // log of the mass within the vocabulary
}

func newDistribution(context uint64, vocab int) distribution {
	return distribution{
		base: int(context % uint64(vocab)), vocab: vocab, logRest: math.Log((1 - ratio) / (1 - math.Pow(ratio, float64(vocab)))),
	}
}

func (d distribution) token(rank int) int32 { return int32((d.base + rank - 1) % d.vocab) }

// rank returns the rank of a token: 1 is the best.
func (d distribution) rank(token int32) int { return (int(token)-d.base+d.vocab)%d.vocab + 1 }

func (d distribution) logprob(rank int) float32 {
	return float32(d.logRest + float64(rank-1)*math.Log(ratio))
}

func (d distribution) candidates(dst []engine.Candidate, n int) []engine.Candidate {
	for rank := 1; rank <= min(n, d.vocab); rank++ {
		dst = append(dst, engine.Candidate{Token: d.token(rank), Logprob: d.logprob(rank)})
	}
	return dst
}

// draw returns the rank that a slot's seed, output index and position pick before tokens are
// excluded.
func (d distribution) draw(p *engine.SlotParams, context uint64, position int32) int {
	if p.Temperature == 0 {
		return 1
	}
	h := mix(mix(mix(context, p.Seed), uint64(uint32(p.OutputIndex))), uint64(uint32(position)))
	u := float64(h>>11) / (1 << 53)
	among := d.vocab
	if p.TopK > 0 {
		among = min(among, int(p.TopK))
	}
	rank := 1 + int(math.Log1p(-u*(1-math.Pow(ratio, float64(among))))/math.Log(ratio))
	return min(rank, among)
}
