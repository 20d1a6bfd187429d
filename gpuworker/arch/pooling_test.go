package arch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// reranker is a small qwen3 file as llama.cpp converts Qwen3-Reranker.
func reranker(labels ...string) *model {
	return qwen3().remove("output.weight").add("cls.output.weight", gguf.F16, 96, 2).
		set("qwen3.pooling_type", uint32(4)).set("qwen3.classifier.output_labels", labels)
}

func TestPoolingOfAFile(t *testing.T) {
	for value, want := range map[any]arch.Pooling{
		nil: arch.PoolingNone, uint32(0): arch.PoolingNone, int32(-1): arch.PoolingNone, uint32(1): arch.PoolingMean,
		uint32(2): arch.PoolingFirst, uint32(3): arch.PoolingLast,
	} {
		file := qwen3()
		if value != nil {
			file.set("qwen3.pooling_type", value)
		}
		m, err := file.parse(t)
		require.NoError(t, err)
		require.Equal(t, want, m.Pooling, "%v", value)
		require.Nil(t, m.Classifier)
	}
}

func TestClassifierOfAReranker(t *testing.T) {
	// Rows are those of the labels, in the labels' order. The head has no role in the engine.
	m, err := reranker("no", "yes").parse(t)
	require.NoError(t, err)
	require.Equal(t, arch.PoolingRank, m.Pooling)
	require.Len(t, m.Classifier.Yes, 96)
	require.Len(t, m.Classifier.No, 96)
	require.Equal(t, float32(1.8115234), m.Classifier.Yes[95])
	require.True(t, m.Desc.TiedHead)
	for _, b := range m.Bindings {
		require.NotEqual(t, "cls.output.weight", b.Tensor.Name)
	}
}

func TestRefusalOfLabelsIsShort(t *testing.T) {
	// A classifier of images has thousands of labels, and a hostile file millions.
	_, err := reranker(slices.Repeat([]string{strings.Repeat("x", 99)}, 1000)...).parse(t)
	require.ErrorIs(t, err, arch.ErrUnsupportedArch)
	require.ErrorContains(t, err, "of 1000 (metadata qwen3.classifier.output_labels)")
	require.Less(t, len(err.Error()), 500)
}

func TestEncodersAreRefusedWithTheBlocksThatTheyNeed(t *testing.T) {
	for architecture, want := range map[string]string{
		"bert":            "attention to later positions and layer norms (decoders",
		"gemma-embedding": "attention to later positions, windows on both sides of a position, and dense layers after the pooling (decoders",
		"modern-bert":     "attention to later positions and layer norms (decoders",
		"nomic-bert":      "attention to later positions and layer norms (decoders",
		"t5encoder":       "attention to later positions (decoders",
	} {
		_, err := small(architecture, 24).parse(t)
		require.ErrorIs(t, err, arch.ErrUnsupportedArch)
		require.ErrorContains(t, err, fmt.Sprintf("architecture %q needs %s", architecture, want))
	}
}
