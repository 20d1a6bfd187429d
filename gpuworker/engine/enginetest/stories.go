package enginetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
)

// scored are the weight types of the stories model whose perplexities are golden data.
func scored() []gguf.Type {
	return []gguf.Type{
		gguf.F16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL,
	}
}

// variant is the name of a weight type in golden data.
func variant(typ gguf.Type) string { return strings.ToLower(typ.String()) }

var stories kept[gguf.Type, *reference.Weights]

// story returns the stories model in a weight type. It quantises the model if the repository does
// not have the file, and reads it once a process. The model is read-only.
func story(t *testing.T, typ gguf.Type) *reference.Weights {
	t.Helper()
	w, err := stories.get(typ, func() (*reference.Weights, error) { return FromFile(modeltest.Stories(t, typ)) })
	require.NoError(t, err)
	return w
}
