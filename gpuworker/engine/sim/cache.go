package sim

// piece is the number of tokens that are hashed together. Every block size is a multiple of it, so
// that the block size changes no token.
const piece = 16

// cell returns the value of a position after the cell of the position before it, which is 0 at the
// start of a piece.
func cell(before uint64, token int32) uint64 { return mix(before, uint64(uint32(token))+1) | 1 }

// cache has the contents of the KV blocks: for every position of a block, the hash of its piece's
// tokens up to it. A cell is 0 if it was not written since the start of its block.
type cache struct {
	blockSize int
	cells     []uint64
	host      map[int32][]uint64 // blocks in host memory that were written
}

func newCache(blockSize, blocks int) cache {
	return cache{blockSize: blockSize, cells: make([]uint64, blocks*blockSize), host: map[int32][]uint64{}}
}

// window is the cache of the window group. The zero value is that of a runner without one.
type window struct {
	cache

	size int // positions
}

// holds reports whether the blocks have the cells of a history at the positions that `position`
// sees.
func (w *window) holds(blocks []int32, h *history, position int) bool {
	for at := position; at >= 0 && at > position-w.size; {
		if w.at(blocks, at) != h.cells[at] {
			return false
		}
		at = at/piece*piece - 1 // the cell at the end of a piece is of all its tokens
	}
	return true
}

// write stores tokens at consecutive positions, and clears the positions after them in their
// blocks. cells are those of a history with the same tokens: a piece that starts here is copied
// from it, and a piece that started before continues from the contents of its block.
func (c *cache) write(blocks []int32, position int, tokens []int32, cells []uint64) {
	for len(tokens) > 0 {
		off := position % c.blockSize
		block := c.block(blocks[position/c.blockSize])
		n := min(c.blockSize-off, len(tokens))
		i := 0
		if off%piece > 0 {
			for before := block[off-1]; i < n && (off+i)%piece > 0; i++ {
				before = cell(before, tokens[i])
				block[off+i] = before
			}
		}
		copy(block[off+i:off+n], cells[i:n])
		for end := off + n; end < len(block) && block[end] != 0; end++ {
			block[end] = 0
		}
		position, tokens, cells = position+n, tokens[n:], cells[n:]
	}
}

func (c *cache) block(id int32) []uint64 { return c.cells[int(id)*c.blockSize:][:c.blockSize] }

func (c *cache) copyBlock(dst, src int32) { copy(c.block(dst), c.block(src)) }

func (c *cache) copyOut(dst, src int32) {
	if c.host[dst] == nil {
		c.host[dst] = make([]uint64, c.blockSize)
	}
	copy(c.host[dst], c.block(src))
}

// copyIn: src was written.
func (c *cache) copyIn(dst, src int32) { copy(c.block(dst), c.host[src]) }

// context returns the hash of positions 0 .. position from the blocks.
func (c *cache) context(blocks []int32, position int) uint64 {
	h := uint64(1)
	for end := piece - 1; end < position; end += piece {
		h = mix(h, c.at(blocks, end))
	}
	return mix(h, c.at(blocks, position))
}

func (c *cache) at(blocks []int32, position int) uint64 {
	return c.block(blocks[position/c.blockSize])[position%c.blockSize]
}
