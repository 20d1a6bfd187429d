package blake3

import "lukechampine.com/blake3/guts"

// Sizes of subtrees in bytes. Best is the fastest: the most bytes that stay in a core's cache after
// a read.
const (
	Least = guts.MaxSIMD * guts.ChunkSize
	Best  = 256 << 10
)

// Value returns the chaining value of the subtree over data, whose size is a power of two of at
// least Least. chunk is the position of its first chunk of 1 KiB in the message, a multiple of its
// number of chunks. Another size is a bug of the caller and panics. Value keeps no state.
func Value(data []byte, chunk uint64) [8]uint32 {
	size := len(data)
	if size < Least || size&(size-1) != 0 {
		panic("blake3: subtrees are a power of two of at least 16 KiB")
	}
	if size <= Best {
		return value(data, chunk)
	}
	half := size / 2
	return Parent(Value(data[:half], chunk), Value(data[half:], chunk+uint64(half)/guts.ChunkSize))
}

// Parent returns the chaining value of two adjacent subtrees that together are not the whole
// message.
func Parent(left, right [8]uint32) [8]uint32 {
	return guts.ChainingValue(guts.ParentNode(left, right, &guts.IV, 0))
}

// portable is value for every processor.
func portable(data []byte, chunk uint64) [8]uint32 {
	var values [Best / Least][8]uint32
	n := len(data) / Least
	for i := range n {
		group := (*[Least]byte)(data[i*Least:])
		values[i] = guts.ChainingValue(guts.CompressBuffer(group, Least, &guts.IV, chunk+uint64(i)*guts.MaxSIMD, 0))
	}
	for ; n > 1; n /= 2 {
		for i := range n / 2 {
			values[i] = Parent(values[2*i], values[2*i+1])
		}
	}
	return values[0]
}
