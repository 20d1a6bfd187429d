package sim

// history is what the blocks of a slot should hold: the cells of its own tokens, as a cache would write them.
type history struct {
	cells  []uint64 // by position
	chains []uint64 // [n]: the hash of the first n whole pieces
}

// begin forgets all but the first positions.
func (h *history) begin(length int32) {
	h.cells = h.cells[:length]
	h.chains = h.chains[:min(len(h.chains), int(length)/piece+1)]
}

func (h *history) add(token int32) {
	before := uint64(0)
	if len(h.cells)%piece > 0 {
		before = h.cells[len(h.cells)-1]
	}
	h.cells = append(h.cells, cell(before, token))
	if len(h.chains) == 0 {
		h.chains = append(h.chains, 1)
	}
	if len(h.cells)%piece == 0 {
		h.chains = append(h.chains, mix(h.chains[len(h.chains)-1], h.cells[len(h.cells)-1]))
	}
}

// context is what the cache's context is where the blocks hold the history.
func (h *history) context(position int) uint64 {
	return mix(h.chains[position/piece], h.cells[position])
}
