package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Whole is a message in one piece; free it.
func Whole(data mem.BufferSlice) mem.Buffer { return data.MaterializeToBuffer(&pieces) }

// Lengths of the memory that is kept for messages and their frames, as powers of two: from what is least kept by grpc-go to a message of
// vectors. A longer one is left to the collector.
const (
	leastPiece = 12
	mostPiece  = 22
)

// pieces is the memory of messages in one piece and of the frames that they come in. Unlike grpc-go's it is given out as it came back,
// since all of it is written over before it is read, and in lengths that fit: each frame of 16 KiB would be cleared, a prompt of 200 kB
// would clear a megabyte, and rows of 4 MiB all of theirs.
var pieces piecePool

// piecePool is a mem.BufferPool. What is asked of it is written before it is read.
type piecePool struct {
	kept [mostPiece + 1]sync.Pool // of *[]byte, by the power of two that is their length
}

// Get implements mem.BufferPool.
func (p *piecePool) Get(length int) *[]byte {
	power := bits.Len(uint(max(length, 1) - 1))
	if power > mostPiece {
		piece := make([]byte, length)
		return &piece
	}
	power = max(power, leastPiece)
	piece, ok := p.kept[power].Get().(*[]byte)
	if !ok {
		fresh := make([]byte, 1<<power)
		piece = &fresh
	}
	*piece = (*piece)[:length]
	return piece
}

// Put implements mem.BufferPool.
func (p *piecePool) Put(piece *[]byte) {
	if power := bits.Len(uint(cap(*piece))) - 1; power >= leastPiece && power <= mostPiece && cap(*piece) == 1<<power {
		p.kept[power].Put(piece)
	}
}
