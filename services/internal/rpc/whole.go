package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Whole is a message in one piece; free it.
func Whole(data mem.BufferSlice) mem.Buffer { return data.MaterializeToBuffer(&pieces) }

// Lengths of the memory that is kept for messages in one piece, as powers of two: from what little more than a frame takes to what is
// still common. A longer one is left to the collector.
const (
	leastPiece = 15
	mostPiece  = 20
)

// pieces is the memory of messages in one piece. Unlike grpc-go's it is given out as it came back, since all of it is written over, and
// in lengths that fit: for a prompt of 200 kB that spares clearing a megabyte.
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
