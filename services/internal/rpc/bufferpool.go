package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Flatten returns a message in one buffer. The caller must free it.
func Flatten(data mem.BufferSlice) mem.Buffer { return data.MaterializeToBuffer(&buffers) }

// Powers of two of the pooled lengths: from grpc-go's smallest pooled buffer to a message of
// vectors. Longer buffers are left to the garbage collector.
const (
	minPooledPower = 12
	maxPooledPower = 22
)

// buffers holds the buffers of messages and of the frames that they arrive in. Unlike grpc-go's
// pool it does not clear them, because every byte is overwritten before it is read, and its lengths
// fit. grpc-go would clear each frame of 16 KiB, a megabyte for a prompt of 200 kB, and all 4 MiB
// of a message of vectors.
var buffers bufferPool

// bufferPool is a mem.BufferPool. Its users must write a buffer before they read it.
type bufferPool struct {
	pools [maxPooledPower + 1]sync.Pool // of *[]byte, by the power of two of their length
}

// Get implements mem.BufferPool.
func (p *bufferPool) Get(length int) *[]byte {
	power := bits.Len(uint(max(length, 1) - 1))
	if power > maxPooledPower {
		piece := make([]byte, length)
		return &piece
	}
	power = max(power, minPooledPower)
	piece, ok := p.pools[power].Get().(*[]byte)
	if !ok {
		fresh := make([]byte, 1<<power)
		piece = &fresh
	}
	*piece = (*piece)[:length]
	return piece
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(piece *[]byte) {
	if power := bits.Len(uint(cap(*piece))) - 1; power >= minPooledPower && power <= maxPooledPower && cap(*piece) == 1<<power {
		p.pools[power].Put(piece)
	}
}
