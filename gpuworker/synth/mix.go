package synth

import (
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// Mix is the type of each matrix of a file.
type Mix struct {
	name     string
	fileType uint32    // general.file_type
	usual    gguf.Type // most matrices
	more     gguf.Type // matrices that lose most by few bits
}

// fileTypes are the values of general.file_type.
var fileTypes = map[gguf.Type]uint32{
	gguf.F32: 0, gguf.F16: 1, gguf.Q4_0: 2, gguf.Q4_1: 3, gguf.Q8_0: 7, gguf.Q5_0: 8, gguf.Q5_1: 9,
	gguf.Q2K: 10, gguf.Q3K: 11, gguf.Q4K: 14, gguf.Q5K: 16, gguf.Q6K: 18, gguf.IQ4NL: 25, gguf.IQ4XS: 30, gguf.BF16: 32,
	gguf.IQ2XXS: 19, gguf.IQ2XS: 20, gguf.IQ3XXS: 23, gguf.IQ3S: 26, gguf.IQ2S: 28, gguf.MXFP4: 38, gguf.NVFP4: 39,
}

// The mixes of most published K-quant files: Q6_K where more bits help, as llama.cpp distributes
// it.
var (
	Q4KM = Mix{"Q4_K_M", 15, gguf.Q4K, gguf.Q6K}
	Q5KM = Mix{"Q5_K_M", 17, gguf.Q5K, gguf.Q6K}
)

// Only is a file whose matrices are all of one type.
func Only(t gguf.Type) Mix { return Mix{t.String(), fileTypes[t], t, t} }

// String is the mix's usual name, such as Q8_0 or Q4_K_M.
func (m Mix) String() string { return m.name }

// writable reports whether files of the mix can be written.
func (m Mix) writable() bool {
	_, usual := fileTypes[m.usual]
	_, more := fileTypes[m.more]
	return usual && more
}

// of is the type of a matrix. The head gets more bits, which may be the embedding. So do the value
// and the feed-forward output matrices in the first and the last eighth of the layers and in every
// third layer between. A router is of F32, as in published files.
func (m Mix) of(role engine.Role, layer int, d *engine.ModelDesc) gguf.Type {
	layers := len(d.Layers)
	eighth := layers / 8
	picked := layer < eighth || layer >= 7*layers/8 || (layer-eighth)%3 == 2
	switch {
	case role == engine.RoleOutput, role == engine.RoleEmbedding && d.TiedHead:
		return m.more
	case role == engine.RoleRouter:
		return gguf.F32
	case (role == engine.RoleV || isDown(role)) && picked:
		return m.more
	default:
		return m.usual
	}
}

// isDown reports whether a matrix returns from the width of an MLP.
func isDown(role engine.Role) bool {
	return role == engine.RoleDown || role == engine.RoleExpertDown || role == engine.RoleSharedDown
}
