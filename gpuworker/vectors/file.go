package vectors

import (
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/safetensors"
	"github.com/millrace/millrace/internal/vectorfile"
)

// The texts of files for the engine's values.
var (
	kinds      = map[engine.CodebookKind]string{engine.Flat: codebookfile.Flat, engine.Product: codebookfile.Product}
	metrics    = map[engine.Metric]string{engine.L2: codebookfile.L2, engine.InnerProduct: codebookfile.InnerProduct, engine.Cosine: codebookfile.Cosine}
	algorithms = map[engine.Algorithm]string{engine.Lloyd: codebookfile.Lloyd, engine.Annealed: codebookfile.Annealed}
	types      = map[engine.Element]safetensors.Type{engine.VectorF32: safetensors.F32, engine.VectorF16: safetensors.F16, engine.VectorBF16: safetensors.BF16}
	elements   = map[engine.Element]vectorfile.ElementType{
		engine.VectorF32: vectorfile.F32, engine.VectorF16: vectorfile.F16, engine.VectorBF16: vectorfile.BF16,
		engine.VectorU8: vectorfile.U8, engine.VectorI8: vectorfile.I8,
	}
)

// descOf returns a file's shape, which codebookfile has checked.
func descOf(c codebookfile.Codebook) engine.CodebookDesc {
	return engine.CodebookDesc{
		Kind: keyOf(kinds, c.Kind), Metric: keyOf(metrics, c.Metric), Dimension: c.Dimension, Codewords: c.Codewords,
		Subspaces: c.Subspaces, Type: keyOf(types, c.CodewordType),
	}
}

func keyOf[K, V comparable](m map[K]V, value V) (key K) {
	for k, v := range m {
		if v == value {
			return k
		}
	}
	return key
}

// origin is how a codebook was trained, if that is known.
type origin struct {
	known     bool
	element   engine.Element
	algorithm engine.Algorithm
	seed      uint64
}

// fileOf describes a codebook for its file.
func fileOf(d engine.CodebookDesc, raw engine.Digest, o origin) codebookfile.Codebook {
	c := codebookfile.Codebook{
		Kind: kinds[d.Kind], Metric: metrics[d.Metric], Dimension: d.Dimension, Codewords: d.Codewords, Subspaces: d.Subspaces,
		CodewordType: types[d.Type], Digest: raw,
	}
	if o.known {
		c.ElementType, c.Algorithm, c.Seed, c.Numerics = elements[o.element], algorithms[o.algorithm], o.seed, Numerics
	}
	return c
}
