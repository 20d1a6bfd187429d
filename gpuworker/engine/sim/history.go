package sim

import "slices"

// history has the cells that the blocks of a slot should have: those of its own tokens.
type history struct {
	cells  []uint64 // by position
	chains []uint64 // [n]: the hash of the first n whole pieces
}

// begin drops all positions except the first.
func (h *history) begin(length int32) {
	h.cells = h.cells[:length]
	h.chains = h.chains[:min(len(h.chains), int(length)/piece+1)]
}

// add appends tokens and returns their cells.
func (h *history) add(tokens []int32) []uint64 {
	first, before := len(h.cells), uint64(0)
	if first%piece > 0 {
		before = h.cells[first-1]
	}
	if len(h.chains) == 0 {
		h.chains = append(h.chains, 1)
	}
	h.cells = slices.Grow(h.cells, len(tokens))
	for _, token := range tokens {
		before = cell(before, token)
		h.cells = append(h.cells, before)
		if len(h.cells)%piece == 0 {
			h.chains = append(h.chains, mix(h.chains[len(h.chains)-1], before))
			before = 0
		}
	}
	return h.cells[first:]
}

// context returns the context of the cache if the blocks have the history.
func (h *history) context(position int) uint64 {
	return mix(h.chains[position/piece], h.cells[position])
}
