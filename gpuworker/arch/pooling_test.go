package arch_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/gpuworker/synth"
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
		"bert":        "layer norms (models that embed texts and run are EmbeddingGemma",
		"modern-bert": "layer norms (models that",
		"nomic-bert":  "layer norms (models that",
		"t5encoder":   "biases of scores by distance (models that",
	} {
		_, err := small(architecture, 24).parse(t)
		require.ErrorIs(t, err, arch.ErrUnsupportedArch)
		require.ErrorContains(t, err, fmt.Sprintf("architecture %q needs %s", architecture, want))
	}
}

// embedder is a small file of EmbeddingGemma with other keys; nil leaves a key out.
func embedder(t *testing.T, other map[string]any) []byte {
	t.Helper()
	shape, ok := synth.Small("gemma-embedding")
	require.True(t, ok)
	family := *shape.Family
	family.Keys = maps.Clone(family.Keys)
	for key, value := range other {
		if family.Keys[key] = value; value == nil {
			delete(family.Keys, key)
		}
	}
	shape.Family = &family
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.F16), 1))
	return file.Bytes()
}

func parsed(t *testing.T, data []byte) (*arch.Model, error) {
	t.Helper()
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	return arch.Parse(f)
}

func TestEmbeddingGemmaPoolsAndMultiplies(t *testing.T) {
	m, err := parsed(t, embedder(t, nil))
	require.NoError(t, err)
	require.True(t, m.Desc.WholeTexts())
	require.Equal(t, arch.PoolingMean, m.Pooling)
	require.Len(t, m.Dense, 2)
	require.Equal(t, []int{48, 64, 64, 48}, []int{m.Dense[0].In, m.Dense[0].Out, m.Dense[1].In, m.Dense[1].Out})
	require.Len(t, m.Dense[0].Rows, 48*64)
	require.Equal(t, 48, m.VectorWidth())
	for _, b := range m.Bindings {
		require.NotContains(t, b.Tensor.Name, "dense")
	}
	// A conversion without the dense layers, one without the pooling, and one with the first layer alone.
	plain := map[string]any{"pooling_type": nil}
	for _, key := range []string{"dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"} {
		plain[key] = nil
	}
	m, err = parsed(t, embedder(t, plain))
	require.NoError(t, err)
	require.Empty(t, m.Dense)
	require.Equal(t, arch.PoolingMean, m.Pooling)
	m, err = parsed(t, embedder(t, map[string]any{"dense_3_feat_in": nil, "dense_3_feat_out": nil}))
	require.NoError(t, err)
	require.Equal(t, 64, m.VectorWidth())
}

func TestEmbeddingGemmaRefusals(t *testing.T) {
	// A classifier would be of the last token, of which attention to later positions makes nothing special.
	from, to := filepath.Join(t.TempDir(), "a.gguf"), filepath.Join(t.TempDir(), "b.gguf")
	labels := map[string]any{"pooling_type": uint32(4), "classifier.output_labels": []string{"yes", "no"}}
	require.NoError(t, os.WriteFile(from, embedder(t, labels), 0o600))
	modeltest.WithTensors(t, from, to, nil, []modeltest.Tensor{
		{Name: "cls.output.weight", Type: gguf.F32, Dims: []uint64{48, 2}, Bytes: make([]byte, 4*96)},
	})
	f, err := gguf.Open(to)
	require.NoError(t, err)
	_, err = arch.Parse(f)
	require.ErrorIs(t, err, arch.ErrUnsupportedArch)
	require.ErrorContains(t, err, "reranking by attention to later positions")
	require.NoError(t, f.Close())
	shape, ok := synth.Small("gemma-embedding")
	require.True(t, ok)
	for name, tc := range map[string]struct {
		key   string
		value any
		want  string
	}{
		"causal attention":        {"attention.causal", true, "attention.causal"},
		"another width in":        {"dense_2_feat_in", uint32(64), "dense_2_feat_in is 64, want 48, which gemma-embedding.embedding_length is"},
		"another width between":   {"dense_2_feat_out", uint32(32), "dense_3_feat_in is 64, want 32, which gemma-embedding.dense_2_feat_out is"},
		"no width out":            {"dense_3_feat_out", uint32(0), "dense_3_feat_out is 0, want 1 to"},
		"more weights than fit":   {"dense_3_feat_out", uint32(1 << 24), "dense_3_feat_out is 16777216, want 1 to 131072"},
		"a scale of its branches": {"residual_scale", float32(2), "residual_scale"},
	} {
		keys := maps.Clone(shape.Family.Keys)
		keys[tc.key] = tc.value
		_, err := arch.Describe(header(t, "gemma-embedding", keys, nil, nil), "gemma-embedding")
		require.ErrorContains(t, err, tc.want, name)
	}
}
