package modeltest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
	"github.com/millrace/millrace/internal/repotest"
)

// shipped are the variants in the repository, by path from its root.
var shipped = map[gguf.Type]string{
	gguf.Q8_0: "testdata/models/stories-5m-q8_0.gguf",
	gguf.F16:  "testdata/models/stories-5m-f16.gguf",
	gguf.Q4K:  "testdata/models/stories-5m-q4_k.gguf",
	gguf.Q5K:  "testdata/models/stories-5m-q5_k.gguf",
}

// Variants returns the weight types that Stories supports.
func Variants() []gguf.Type {
	return []gguf.Type{
		gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1,
		gguf.Q2K, gguf.Q3K, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL, gguf.IQ4XS,
		gguf.IQ3S, gguf.IQ3XXS, gguf.IQ2S, gguf.IQ2XS, gguf.IQ2XXS, gguf.MXFP4, gguf.NVFP4,
	}
}

// Stories returns the path of the stories model with matrices of type t. Norms are F32 in every
// variant. A type that the repository does not have is written to the test's temporary folder.
func Stories(t testing.TB, typ gguf.Type) string {
	t.Helper()
	if path, ok := shipped[typ]; ok {
		return repotest.Path(path)
	}
	path := filepath.Join(t.TempDir(), fmt.Sprintf("stories-5m-%s.gguf", typ))
	require.NoError(t, convert(Stories(t, gguf.F16), path, typ))
	return path
}

// convert writes the model at from to path with every matrix in type typ.
func convert(from, path string, typ gguf.Type) (err error) {
	in, err := gguf.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, in.Close()) }()
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, out.Close()) }()
	w := gguf.NewWriter(out)
	if err := copyMetadata(w, in.Metadata()); err != nil {
		return err
	}
	target := func(t gguf.Tensor) gguf.Type {
		if len(t.Dims) > 1 {
			return typ
		}
		return t.Type
	}
	for _, t := range in.Tensors() {
		w.Tensor(t.Name, target(t), t.Dims...)
	}
	if err := w.Begin(); err != nil {
		return err
	}
	for _, t := range in.Tensors() {
		raw := in.Bytes(t)
		if to := target(t); to != t.Type {
			values := make([]float64, t.Elements())
			if err := dequant.Dequantize(t.Type, raw, values); err != nil {
				return err
			}
			if raw, err = Quantize(to, values); err != nil {
				return err
			}
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
	}
	return w.Close()
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
