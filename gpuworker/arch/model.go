package arch

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Model is a model file as an engine sees it.
type Model struct {
	Desc     engine.ModelDesc
	Bindings []Binding // every tensor of the file that an engine needs, in file order

	Architecture string // general.architecture
	Name         string // general.name; may be empty
	Quantization string // such as Q8_0 or Q4_K_M: general.file_type, or the type that holds most weights
	Parameters   uint64 // weights of all bindings
	Bytes        uint64 // bytes of all bindings in the file
}

// Binding gives a tensor its role.
type Binding struct {
	Tensor gguf.Tensor
	Desc   engine.TensorDesc // as the engine gets it, which is as the file has it unless Widens
}

// Widens says whether the file stores a norm, a bias or factors in fewer bits than engines take: then the engine gets each
// number as F32, which holds it exactly.
func (b Binding) Widens() bool { return engine.Type(b.Tensor.Type) != b.Desc.Type }

// Bytes is the size of the tensor as the engine gets it.
func (b Binding) Bytes() uint64 { return gguf.Type(b.Desc.Type).RowBytes(b.Tensor.Elements()) }

// ReadAt copies len(p) bytes of the tensor as the engine gets it, from offset off, into p. Both are multiples of 4.
func (b Binding) ReadAt(f *gguf.File, p []byte, off uint64) error {
	if !b.Widens() {
		return f.ReadAt(b.Tensor, p, off)
	}
	raw := make([]byte, len(p)/2)
	if err := f.ReadAt(b.Tensor, raw, off/2); err != nil {
		return err
	}
	copy(p, b.Widen(raw))
	return nil
}

// Widen converts numbers of the file, which raw holds whole, to the type that the engine gets. Call it only if Widens.
func (b Binding) Widen(raw []byte) []byte {
	size := b.Tensor.Type.BlockBytes()
	wide := make([]byte, 0, uint64(len(raw))/size*4)
	for ; len(raw) > 0; raw = raw[size:] {
		half := binary.LittleEndian.Uint16(raw)
		bits := uint32(half) << 16 // of BF16
		if b.Tensor.Type == gguf.F16 {
			bits = math.Float32bits(float32(dequant.Half(half)))
		}
		wide = binary.LittleEndian.AppendUint32(wide, bits)
	}
	return wide
}

// family is what one architecture does differently.
type family struct {
	rope        engine.RopeStyle
	needQKVBias bool
	qkNorm      bool
}

var families = map[string]family{
	"llama": {rope: engine.RopeNorm}, // rows of Q and K are permuted in the file so that pairs are adjacent
	"qwen2": {rope: engine.RopeNeox, needQKVBias: true},
	"qwen3": {rope: engine.RopeNeox, qkNorm: true},
}

// Architectures lists the values of general.architecture that Parse accepts, sorted.
func Architectures() []string {
	names := make([]string, 0, len(families))
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Parse describes the model in f. Errors wrap ErrUnsupportedArch, ErrUnsupportedType, ErrInvalidModel or
// gguf.ErrValueType, or what reading f gave. The Model does not refer to f's mapping and outlives it.
func Parse(f *gguf.File) (*Model, error) {
	meta := f.Metadata()
	if err := refuseParts(meta, len(f.Tensors())); err != nil {
		return nil, err
	}
	name, ok, err := meta.String("general.architecture")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, invalid("metadata general.architecture is missing: the file is GGUF and no model")
	}
	fam, ok := families[name]
	if !ok {
		return nil, unsupported("architecture %.64q, want one of %v", name, Architectures())
	}
	if err := refuseFeatures(meta, name); err != nil {
		return nil, err
	}
	m := &Model{Architecture: name}
	if m.Name, _, err = meta.String("general.name"); err != nil {
		return nil, err
	}
	if m.Desc, err = readHyperparameters(f, name, fam); err != nil {
		return nil, err
	}
	if err := m.bind(f, fam); err != nil {
		return nil, err
	}
	m.Quantization, err = quantization(meta, m.Bindings)
	return m, err
}
