package arch

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Model is a model file as an engine needs it.
type Model struct {
	Desc     engine.ModelDesc
	Bindings []Binding // every tensor of the file that an engine needs, in file order

	Pooling    Pooling
	Classifier *Classifier // of PoolingRank
	Dense      []Dense     // after the pooling, in their order

	Architecture string // general.architecture
	Name         string // general.name; may be empty
	Quantization string // such as Q8_0 or Q4_K_M: general.file_type, or the type that holds most weights
	Parameters   uint64 // weights of all bindings
	Bytes        uint64 // bytes of all bindings in the file

	short *shortRope
}

// Serving returns the description of the model for a worker that serves at most context positions.
// A model with LongRoPE has other divisors of frequencies up to its original context than beyond it;
// short reports that they are in use, which changes tokens. The choice depends on what the worker
// serves and not on a request, because cached keys are rotated already.
func (m *Model) Serving(context int) (d engine.ModelDesc, short bool) {
	d = m.Desc
	if m.short == nil || context > m.short.context {
		return d, false
	}
	d.Ropes = slices.Clone(d.Ropes)
	d.Ropes[0].Divisors = m.short.divisors
	return d, true
}

// Binding is a tensor and its role. If the file has one tensor for several roles, each role is
// bound to a view of it, and the views follow one another in the order of their rows.
type Binding struct {
	Tensor gguf.Tensor       // of the file, or a view of it
	File   string            // name of the tensor of the file
	Desc   engine.TensorDesc // as the engine gets it; differs from the file if Widens
}

// Widens reports whether the file stores a norm, a bias or factors with fewer bits than engines
// accept. The engine then gets each number as F32, which is exact.
func (b Binding) Widens() bool { return engine.Type(b.Tensor.Type) != b.Desc.Type }

// Bytes is the size of the tensor as the engine gets it.
func (b Binding) Bytes() uint64 { return gguf.Type(b.Desc.Type).RowBytes(b.Tensor.Elements()) }

// ReadAt copies len(p) bytes of the tensor, as the engine gets it, from offset off into p. Both are
// multiples of 4.
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

// Widen converts whole numbers of the file in raw to the type that the engine gets. Call it only if
// Widens.
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

// Parse describes the model in f. Errors wrap ErrUnsupportedArch, ErrUnsupportedType,
// ErrInvalidModel or gguf.ErrValueType, or come from reading f. The Model does not refer to f's
// mapping and outlives it.
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
	m := &Model{Architecture: name}
	if m.Name, _, err = meta.String("general.name"); err != nil {
		return nil, err
	}
	r := &reader{file: f, meta: meta, prefix: name + "."}
	if m.Desc, err = r.describe(name); err != nil {
		return nil, err
	}
	m.short = r.short
	if m.Pooling, m.Classifier = r.readPooling(m.Desc.Hidden); r.err != nil {
		return nil, r.err
	}
	if m.Desc.WholeTexts() {
		switch m.Pooling {
		case PoolingNone:
			m.Pooling = PoolingMean // of every published model
		case PoolingRank:
			return nil, unsupported("reranking by attention to later positions (metadata %s%s is %d)", r.prefix, poolingKey, PoolingRank)
		case PoolingMean, PoolingFirst, PoolingLast:
		}
	}
	if m.Dense, err = r.readDense(); err != nil {
		return nil, err
	}
	if err := m.bind(r); err != nil {
		return nil, err
	}
	m.Quantization, err = quantization(meta, m.Bindings)
	return m, err
}

// Layout is a description and the names of its tensors in files of the family.
type Layout struct {
	Desc  engine.ModelDesc
	Dense []DenseShape // tensors of the layers after the pooling
	fused fusion
}

// Describe returns the layout of a model of an architecture with the keys of f. Of the tensors, f
// needs only those whose presence or numbers the family reads.
func Describe(f *gguf.File, architecture string) (*Layout, error) {
	r := &reader{file: f, meta: f.Metadata(), prefix: architecture + "."}
	d, err := r.describe(architecture)
	if err != nil {
		return nil, err
	}
	return &Layout{d, r.dense, r.fused}, nil
}

// Tensor returns the name of the tensor with a role, and all roles that it holds, in the order of
// their rows. The layer is ignored for roles outside the layers.
func (l *Layout) Tensor(role engine.Role, layer int) (string, []engine.Role) {
	if suffix := l.fused.suffixOf(role); suffix != "" {
		return nameIn(suffix, role, layer), l.fused[suffix]
	}
	return TensorName(role, layer), []engine.Role{role}
}

// describe refuses keys that the family does not implement before what it found wrong: a file of
// another kind of network lacks keys too, and the block is the reason.
func (r *reader) describe(architecture string) (engine.ModelDesc, error) {
	family, ok := families[architecture]
	if !ok {
		return engine.ModelDesc{}, unknown(architecture)
	}
	d := family.describe(r)
	if err := r.refuseUnread(); err != nil {
		return engine.ModelDesc{}, err
	}
	return d, r.err
}

// refuseParts refuses a GGUF file that is not one whole model: a part of one, or an accessory of
// one.
func refuseParts(meta *gguf.Metadata, tensors int) error {
	if _, has := meta.Value("tokenizer.ggml.tokens"); has && tensors == 0 {
		return unsupported("the file holds a vocabulary and no weights, as llama.cpp's ggml-vocab files do: get the file of the model itself")
	}
	count, _, err := meta.Uint("split.count")
	if err != nil {
		return err
	}
	number, _, err := meta.Uint("split.no")
	if err != nil {
		return err
	}
	if count > 1 {
		return unsupported("the file is part %d of a model split into %d files, and its name does not say so: give the parts the names "+
			"NAME-00001-of-%05d.gguf and so on, all in one folder, or merge them with llama.cpp's llama-gguf-split --merge",
			number+1, count, count)
	}
	kind, ok, err := meta.String("general.type")
	if err != nil {
		return err
	}
	if ok && kind != "" && kind != "model" {
		return unsupported("metadata general.type is %.64q, want \"model\": adapters, projectors and the like are not models", kind)
	}
	return nil
}
