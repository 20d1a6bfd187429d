package kvcache

import "sync/atomic"

// Stats are counts since the cache was made. TokensHit <= TokensLooked, Hits <= Lookups.
type Stats struct {
	Lookups      uint64 // calls of Match
	Hits         uint64 // of those, the ones that found a block at least
	TokensLooked uint64 // tokens that Match was asked for
	TokensHit    uint64 // tokens in the blocks that it found
	Evictions    uint64 // blocks whose prefix was given up
}

type counters struct {
	lookups, hits, tokensLooked, tokensHit, evictions atomic.Uint64
}

func (s *counters) looked(asked, found int) {
	s.lookups.Add(1)
	s.tokensLooked.Add(uint64(asked))
	if found > 0 {
		s.hits.Add(1)
		s.tokensHit.Add(uint64(found))
	}
}

// Stats reads the counts, each for itself.
func (c *Cache) Stats() Stats {
	s := &c.stats
	return Stats{
		Lookups: s.lookups.Load(), Hits: s.hits.Load(), TokensLooked: s.tokensLooked.Load(), TokensHit: s.tokensHit.Load(),
		Evictions: s.evictions.Load(),
	}
}
