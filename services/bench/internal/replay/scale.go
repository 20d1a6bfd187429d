package replay

import (
	"math/rand/v2"
	"time"
)

// Scale relates the tokens and the time of the trace to those of the replay.
type Scale struct {
	Shrink int     `json:"shrink"` // tokens of the trace in one of the replay; a power of two, 1 to 32
	Speed  float64 `json:"speed"`  // seconds of the trace in one of the replay; above 0
	Seed   uint64  `json:"seed"`   // of the token ids
}

// tokens returns the number of replayed tokens for n tokens of the trace, rounded up, at least 1.
func (s Scale) tokens(n int) int { return max((n+s.Shrink-1)/s.Shrink, 1) }

// time converts a time of the trace.
func (s Scale) time(d time.Duration) time.Duration { return time.Duration(float64(d) / s.Speed) }

// block returns the number of replayed tokens of a whole block.
func (s Scale) block() int { return BlockTokens / s.Shrink }

// prompt returns the token ids of a request. The ids of a block depend on its name alone, so that
// prompts with equal leading blocks have an equal prefix. vocabulary bounds the ids.
func (s Scale) prompt(r Request, vocabulary int) []uint32 {
	ids := make([]uint32, 0, len(r.Blocks)*s.block())
	for _, block := range r.Blocks {
		random := rand.New(rand.NewPCG(s.Seed, block))
		for range s.block() {
			ids = append(ids, random.Uint32N(uint32(vocabulary)))
		}
	}
	return ids[:s.tokens(r.Prompt)]
}

// prefixes returns names of the prefixes of a prompt, one for each block. Equal names mean equal
// prefixes.
func prefixes(blocks []uint64) []uint64 {
	names := make([]uint64, len(blocks))
	name := uint64(1)
	for i, block := range blocks {
		name = mix(name, block)
		names[i] = name
	}
	return names
}

// mix folds x into h. Neither equal sums nor equal differences of h and x give equal results.
func mix(h, x uint64) uint64 { return avalanche(3*h + avalanche(x+0x9e3779b97f4a7c15)) }

// avalanche is the last step of SplitMix64: every input bit changes every output bit.
func avalanche(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
