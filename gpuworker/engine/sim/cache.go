package sim

// piece is how many tokens are hashed as one. Every size of a block is a multiple of it, so that no size changes a token.
const piece = 16

// cell is what a position of a block holds behind the cell of the position before it, 0 at a piece's begin.
func cell(before uint64, token int32) uint64 { return mix(before, uint64(uint32(token))+1) | 1 }

// cache is what the KV blocks hold: for every position of a block the hash of its piece's tokens up to it. A cell of 0 was
// never written since its block was begun.
type cache struct {
	blockSize int
	cells     []uint64
	host      map[int32][]uint64 // blocks in host memory that were written
}

// write puts a token at a position; what the block held behind it is void.
func (c *cache) write(blocks []int32, position int, token int32) {
	off := position % c.blockSize
	block := c.cells[int(blocks[position/c.blockSize])*c.blockSize:][:c.blockSize]
	before := uint64(0)
	if off%piece > 0 {
		before = block[off-1]
	}
	block[off] = cell(before, token)
	for i := off + 1; i < len(block) && block[i] != 0; i++ {
		block[i] = 0
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

// context is the hash of positions 0 .. position as the blocks hold them now.
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
