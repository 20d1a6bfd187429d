package gguf_test

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// FuzzModel asks that a file of any keys is refused in few words, or gives a description that the
// engines' rules accept or refuse by name. It is here because the tests of package arch need an
// engine, which would be compiled once more for fuzzing.
func FuzzModel(f *testing.F) {
	for _, name := range append(arch.Architectures(), "gemma4-e2b", "gemma4-experts") {
		shape, ok := synth.Small(name)
		require.True(f, ok)
		for _, edge := range edges {
			f.Add(modelHeader(f, shape, edge))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		defer func() { require.NoError(t, file.Close()) }()
		_, err = arch.Parse(file)
		checkRefusal(t, err)
		name, ok, err := file.Metadata().String("general.architecture")
		if !ok || err != nil {
			return
		}
		layout, err := arch.Describe(file, name)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		require.NotEmpty(t, layout.Desc.Layers)
		for _, rope := range layout.Desc.Ropes {
			require.True(t, rope.Divisors == nil || len(rope.Divisors) == rope.Dims/2)
		}
		if err := rules.CheckModel(&layout.Desc); err != nil {
			require.True(t, errors.Is(err, engine.ErrInvalid) || errors.Is(err, engine.ErrUnsupported), "%v", err)
		}
	})
}

// edges are keys at the end of what is allowed, or beyond it.
var edges = []map[string]any{
	{},
	{"embedding_length": uint32(2), "attention.key_length": uint32(2), "attention.value_length": uint32(2), "rope.dimension_count": uint32(2)},
	{"attention.head_count": uint32(1), "attention.head_count_kv": uint32(1), "vocab_size": uint32(1)},
	{"attention.sliding_window": uint32(1)},
	{"attention.sliding_window": uint32(256), "attention.sliding_window_pattern": []bool{true}},
	{"attention.sliding_window": uint32(7), "attention.sliding_window_pattern": slices.Repeat([]bool{true}, 100)},
	{"attention.head_count": []int32{0, 0, 0}, "attention.head_count_kv": []int32{-1}},
	{"rope.scaling.type": "yarn", "rope.scaling.factor": float32(1)},
	{"rope.scaling.type": "yarn", "rope.scaling.factor": float32(3e38), "rope.scaling.original_context_length": uint32(1)},
	{"rope.scaling.type": "linear", "rope.scaling.factor": float32(math.NaN())},
	{"embedding_length_per_layer_input": uint32(math.MaxUint32), "attention.shared_kv_layers": uint32(7)},
	{"expert_count": uint32(math.MaxUint32), "expert_used_count": uint32(1)},
	{"expert_count": uint32(4), "expert_used_count": uint32(5), "leading_dense_block_count": uint32(0)},
	{"expert_count": uint32(6), "expert_used_count": uint32(2), "expert_group_count": uint32(4), "expert_group_used_count": uint32(1)},
	{"expert_shared_count": uint32(4096), "expert_feed_forward_length": uint32(1 << 22), "nextn_predict_layers": uint32(3)},
	{"pooling_type": uint32(4), "classifier.output_labels": []string{"yes", "no"}},
}

// checkRefusal checks that an error is one of those that arch.Parse promises, and is short.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	named := errors.Is(err, arch.ErrInvalidModel) || errors.Is(err, arch.ErrUnsupportedArch) || errors.Is(err, arch.ErrUnsupportedType) ||
		errors.Is(err, gguf.ErrValueType)
	require.True(t, named, "%v", err)
	require.Less(t, len(err.Error()), 4096)
}

// modelHeader returns a file of a shape's keys, some of them changed, with the tensors whose
// presence or numbers change the description.
func modelHeader(f *testing.F, shape synth.Shape, changed map[string]any) []byte {
	f.Helper()
	keys := maps.Clone(shape.Family.Keys)
	maps.Copy(keys, changed)
	var file bytes.Buffer
	w := gguf.NewWriter(&file)
	w.Set("general.architecture", shape.Architecture)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		w.Set(shape.Architecture+"."+key, keys[key])
	}
	numbers := 0
	tensor := func(name string, n int) {
		if n > 0 {
			w.Tensor(name, gguf.F32, uint64(n))
			numbers += n
		}
	}
	tensor(arch.RopeFactorsName, len(shape.Family.Factors))
	tensor(arch.LongFactorsName, len(shape.Family.Long))
	tensor(arch.ShortFactorsName, len(shape.Family.Short))
	for _, name := range shape.Family.Tensors {
		tensor(name, 1)
	}
	require.NoError(f, w.Begin())
	_, err := w.Write(bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, numbers)) // ones
	require.NoError(f, err)
	require.NoError(f, w.Close())
	return file.Bytes()
}
