package sim

import "github.com/millrace/millrace/gpuworker/engine"

// states has the states of a runner whose model carries them: the hash of all tokens that each has
// read, by the index of rules.Slots.State. The zero value is that of other models.
type states struct {
	read     []uint64
	host     map[int32]uint64 // states in host memory that were written
	prefixes []uint64         // by token of the step: the hash of it and those before
}

func newStates(cfg engine.RunnerConfig) states {
	return states{read: make([]uint64, cfg.MaxSequences+cfg.SavedStates), host: map[int32]uint64{}}
}

// add lets the state of a segment read its tokens.
func (s *states) add(seg *engine.Segment, from, to int32, tokens []int32) {
	hash := uint64(1)
	if seg.FirstPosition > 0 {
		hash = s.read[from]
	}
	for _, token := range tokens {
		hash = mix(hash, uint64(uint32(token))+1)
		s.prefixes = append(s.prefixes, hash)
	}
	s.read[to] = hash
}
