package synth

// stream is a counter-based generator: word i is a hash of the tensor's key and i, so that any part of a tensor can be
// made without the parts before it.
type stream struct{ key uint64 }

const golden = 0x9e3779b97f4a7c15

// newStream returns the stream of tensor number index of a model.
func newStream(seed, index uint64) stream {
	return stream{mix(mix(seed+golden) ^ mix(index*golden+1))}
}

// word returns the word at position i.
func (s stream) word(i uint64) uint64 { return mix(s.key + i*golden) }

// mix is the output function of SplitMix64: a bijection of 64 bits in which every input bit moves every output bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
