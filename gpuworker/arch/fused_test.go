package arch

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// fusedFile is a model of one layer, width 32, 2 heads of 16, one key-value head and an inner width
// of 64, whose tensors are named and sized by a map from suffix to dims.
func fusedFile(t *testing.T, layer map[string][]uint64, types map[string]gguf.Type) *gguf.File {
	t.Helper()
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	w.Set("general.architecture", "fused")
	for key, value := range map[string]uint32{
		"block_count": 1, "embedding_length": 32, "feed_forward_length": 64, "context_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1,
	} {
		w.Set("fused."+key, value)
	}
	w.Set("fused.attention.layer_norm_rms_epsilon", float32(1e-5))
	var data []byte
	add := func(name string, typ gguf.Type, dims ...uint64) {
		w.Tensor(name, typ, dims...)
		size := gguf.Tensor{Dims: dims}.Elements() / typ.BlockSize() * typ.BlockBytes()
		for i := range size {
			data = append(data, byte(i*7+uint64(len(name))))
		}
	}
	add("token_embd.weight", gguf.F16, 32, 8)
	for _, suffix := range []string{"attn_qkv.weight", "attn_qkv.bias", "attn_q.weight", "ffn_up.weight", "attn_output.weight", "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight"} {
		if dims := layer[suffix]; dims != nil {
			add("blk.0."+suffix, types[suffix], dims...)
		}
	}
	add("output_norm.weight", gguf.F32, 32)
	require.NoError(t, w.Begin())
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	f, err := gguf.Parse(buf.Bytes())
	require.NoError(t, err)
	return f
}

func fusedLayer() (map[string][]uint64, map[string]gguf.Type) {
	return map[string][]uint64{
			"attn_qkv.weight": {32, 64}, "ffn_up.weight": {32, 128}, "attn_output.weight": {32, 32}, "ffn_down.weight": {64, 32},
			"attn_norm.weight": {32}, "ffn_norm.weight": {32},
		}, map[string]gguf.Type{
			"attn_qkv.weight": gguf.Q8_0, "attn_qkv.bias": gguf.F16, "ffn_up.weight": gguf.Q4_0, "attn_output.weight": gguf.F16, "ffn_down.weight": gguf.F16,
			"attn_norm.weight": gguf.F32, "ffn_norm.weight": gguf.F32, "attn_q.weight": gguf.Q8_0,
		}
}

// withFusedFamily registers an architecture "fused" for a test.
func withFusedFamily(t *testing.T) {
	t.Helper()
	families["fused"] = family{models: "none", describe: func(r *reader) engine.ModelDesc {
		r.fuse(fusedQKV, fusedGateUp)
		return r.decoder(engine.RopeNeox)
	}}
	t.Cleanup(func() { delete(families, "fused") })
}

func TestFusedTensorsGiveEachRoleAView(t *testing.T) {
	withFusedFamily(t)
	layer, types := fusedLayer()
	layer["attn_qkv.bias"] = []uint64{64}
	f := fusedFile(t, layer, types)
	m, err := Parse(f)
	require.NoError(t, err)
	for role, want := range map[engine.Role]struct {
		file       string
		first, end uint64
		dims       []int64
	}{
		engine.RoleQ:     {"blk.0.attn_qkv.weight", 0, 32, []int64{32, 32}},
		engine.RoleK:     {"blk.0.attn_qkv.weight", 32, 48, []int64{32, 16}},
		engine.RoleV:     {"blk.0.attn_qkv.weight", 48, 64, []int64{32, 16}},
		engine.RoleQBias: {"blk.0.attn_qkv.bias", 0, 32, []int64{32}},
		engine.RoleKBias: {"blk.0.attn_qkv.bias", 32, 48, []int64{16}},
		engine.RoleVBias: {"blk.0.attn_qkv.bias", 48, 64, []int64{16}},
		engine.RoleGate:  {"blk.0.ffn_up.weight", 0, 64, []int64{32, 64}},
		engine.RoleUp:    {"blk.0.ffn_up.weight", 64, 128, []int64{32, 64}},
	} {
		var b Binding
		for _, x := range m.Bindings {
			if x.Desc.Role == role {
				b = x
			}
		}
		whole, ok := f.Tensor(want.file)
		require.True(t, ok)
		require.Equal(t, want.file, b.File)
		require.Equal(t, fmt.Sprintf("%s[%d:%d]", want.file, want.first, want.end), b.Tensor.Name)
		require.Equal(t, want.dims, b.Desc.Dims)
		rows := whole.Dims[len(whole.Dims)-1]
		row := whole.Size / rows
		require.Equal(t, f.Bytes(whole)[want.first*row:want.end*row], f.Bytes(b.Tensor), "%v", role)
	}
	require.Len(t, m.Bindings, 6+6+2, "six roles by views of matrices or biases each, and two of the ffn")
	var parameters, size uint64
	for _, x := range f.Tensors() {
		parameters, size = parameters+x.Elements(), size+x.Size
	}
	require.Equal(t, parameters, m.Parameters)
	require.Equal(t, size, m.Bytes)
}

func TestFusedTensorsThatDoNotAddUpAreRefused(t *testing.T) {
	withFusedFamily(t)
	for name, tc := range map[string]struct {
		suffix string
		dims   []uint64
		typ    gguf.Type
		kind   error
		want   string
	}{
		"a row too few":           {"attn_qkv.weight", []uint64{32, 63}, gguf.Q8_0, ErrInvalidModel, "blk.0.attn_qkv.weight has dimensions [32 63], want [32 64]: rows 32 of q, 16 of k, 16 of v"},
		"the rows of gate":        {"ffn_up.weight", []uint64{32, 64}, gguf.F32, ErrInvalidModel, "blk.0.ffn_up.weight has dimensions [32 64], want [32 128]: rows 64 of gate, 64 of up"},
		"an odd count":            {"ffn_up.weight", []uint64{32, 127}, gguf.Q4_0, ErrInvalidModel, "[32 127], want [32 128]"},
		"another width":           {"attn_qkv.weight", []uint64{64, 32}, gguf.Q8_0, ErrInvalidModel, "[64 32], want [32 64]"},
		"a third dimension":       {"attn_qkv.weight", []uint64{32, 64, 2}, gguf.F32, ErrInvalidModel, "[32 64 2], want [32 64]"},
		"a type that no one runs": {"attn_qkv.weight", []uint64{32, 64}, gguf.Q8_1, ErrUnsupportedType, "blk.0.attn_qkv.weight[0:32] is Q8_1"},
		"a bias of another size":  {"attn_qkv.bias", []uint64{48}, gguf.F32, ErrInvalidModel, "blk.0.attn_qkv.bias has dimensions [48], want [64]"},
		"a bias in blocks":        {"attn_qkv.bias", []uint64{64}, gguf.Q8_0, gguf.ErrFormat, "blk.0.attn_qkv.bias of type Q8_0 and dimensions [64] has no rows 0 to 32"},
		"q twice":                 {"attn_q.weight", []uint64{32, 32}, gguf.Q8_0, ErrInvalidModel, "tensor blk.0.attn_q.weight holds q of layer 0, which tensor blk.0.attn_qkv.weight holds too"},
		"nothing for q, k, v":     {"attn_qkv.weight", nil, gguf.F32, ErrInvalidModel, "tensor blk.0.attn_qkv.weight, of the rows of q, k and v, is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			layer, types := fusedLayer()
			layer[tc.suffix], types[tc.suffix] = tc.dims, tc.typ
			_, err := Parse(fusedFile(t, layer, types))
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
