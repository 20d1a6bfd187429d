package sim

import (
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// slot holds a slot's parameters, its history and its last sample.
type slot struct {
	history    history
	params     engine.SlotParams // a copy: its lists belong to the slot
	allowed    []uint32          // bitmask; nil = every token
	forbidden  []int32           // by a bias of minus infinity
	lastSample int32
}

func (s *slot) set(p *engine.SlotParams, tokens []int32, vocab int) {
	s.history.begin(0)
	s.history.add(tokens)
	s.params = *p
	s.params.Suppressed = slices.Clone(p.Suppressed)
	s.params.Allowed, s.params.BiasIDs, s.params.BiasValues = nil, nil, nil
	s.allowed, s.forbidden, s.lastSample = nil, nil, 0
	if p.Allowed != nil {
		s.allowed = make([]uint32, (vocab+31)/32)
		for _, id := range p.Allowed {
			s.allowed[id/32] |= 1 << (id % 32)
		}
	}
	for i, v := range p.BiasValues {
		if math.IsInf(float64(v), -1) {
			s.forbidden = append(s.forbidden, p.BiasIDs[i])
		}
	}
}

// permits reports whether a token may be sampled at a position.
func (s *slot) permits(token, position int32, mask []uint32, reserved int) bool {
	bit := func(words []uint32) bool { return words == nil || words[token/32]>>(token%32)&1 == 1 }
	switch {
	case !bit(mask) || !bit(s.allowed):
		return false
	case mask == nil && s.allowed == nil && int(token) < reserved:
		return false
	case position-s.params.PromptLength < s.params.MinTokens && slices.Contains(s.params.Suppressed, token):
		return false
	}
	return !slices.Contains(s.forbidden, token)
}

// sample returns the rank of the sampled token, or 0 if every token is excluded.
func (s *slot) sample(d distribution, context uint64, row *engine.SampleRow, reserved int) int {
	if reserved >= d.vocab {
		reserved = 0
	}
	first := d.draw(&s.params, context, row.Position)
	for i := range d.vocab {
		rank := (first-1+i)%d.vocab + 1
		if s.permits(d.token(rank), row.Position, row.Mask, reserved) {
			return rank
		}
	}
	return 0
}
