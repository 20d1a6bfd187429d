package synth

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// Family is a model of any architecture that package arch reads. The keys decide the tensors.
type Family struct {
	Architecture string // "" = its name among the small shapes

	Keys    map[string]any // metadata without the architecture's prefix; vocab_size is needed
	Tensors []string       // that files may lack and that change the description, such as output.weight
	Factors []float64      // divisors of frequencies; nil = none
	Long    []float64      // of LongRoPE beyond the original context, and Short up to it; nil = none
	Short   []float64

	// Skew is the exponent of the Zipf distribution of the use of experts; 0 = even. See Shape.Skewed.
	Skew float64
}

// plan returns the keys in their order and the layout that the keys and the optional tensors give.
func (f *Family) plan(architecture string) (*plan, error) {
	p := &plan{skew: f.Skew}
	p.divide(arch.RopeFactorsName, f.Factors)
	p.divide(arch.LongFactorsName, f.Long)
	p.divide(arch.ShortFactorsName, f.Short)
	for _, key := range slices.Sorted(maps.Keys(f.Keys)) {
		p.pairs = append(p.pairs, pair{key, f.Keys[key]})
	}
	var header bytes.Buffer
	out := gguf.NewWriter(&header)
	for _, pair := range p.pairs {
		out.Set(architecture+"."+pair.key, pair.value)
	}
	tensors := slices.Clone(p.factors)
	for _, name := range f.Tensors { // only their presence counts
		tensors = append(tensors, tensor{name: name, typ: gguf.F32, dims: []uint64{1}, fill: norm})
	}
	for _, t := range tensors {
		out.Tensor(t.name, t.typ, t.dims...)
	}
	if err := out.Begin(); err != nil {
		return nil, err
	}
	for _, t := range tensors {
		if err := t.write(out, stream{}); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	file, err := gguf.Parse(header.Bytes())
	if err != nil {
		return nil, err
	}
	if p.layout, err = arch.Describe(file, architecture); err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrShape)
	}
	return p, nil
}
