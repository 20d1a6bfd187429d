package arch_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// with returns keys with others added or, if nil, removed.
func with(keys, more map[string]any) map[string]any {
	out := maps.Clone(keys)
	maps.Copy(out, more)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}

// nextKeys are the keys of Qwen 3 Next and 3.5 for their gated delta nets.
func nextKeys(valueHeads uint32, more map[string]any) map[string]any {
	return with(map[string]any{
		"ssm.conv_kernel": uint32(4), "ssm.state_size": uint32(128), "ssm.group_count": uint32(16), "ssm.time_step_rank": valueHeads,
		"ssm.inner_size": 128 * valueHeads, "rope.dimension_count": uint32(64), "rope.freq_base": float32(1e7),
	}, more)
}

func TestPublishedModelsWithStatesGiveTheirNetworks(t *testing.T) {
	type mixed struct{ attention, delta, conv []int }
	every := func(n int) (m mixed) {
		for i := range n {
			if i%4 == 3 {
				m.attention = append(m.attention, i)
			} else {
				m.delta = append(m.delta, i)
			}
		}
		return m
	}
	sections := []int32{11, 11, 10, 0}
	lfm := func(layers int, attention ...int) (kv []int32, m mixed) {
		kv = make([]int32, layers)
		for _, i := range attention {
			kv[i] = 8
		}
		for i, n := range kv {
			if n == 0 {
				m.conv = append(m.conv, i)
			}
		}
		m.attention = attention
		return kv, m
	}
	small, smallLayers := lfm(16, 2, 5, 8, 10, 12, 14)
	large, largeLayers := lfm(24, 2, 6, 10, 14, 18, 21)
	for _, tc := range []struct {
		name, architecture string
		keys               map[string]any
		tensors            []string
		layers             mixed
		state              int // MiB
		want               func(must *require.Assertions, d *engine.ModelDesc)
	}{
		{"Qwen3-Next 80B-A3B", "qwen3next", published(48, 2048, 5120, 16, 2, 256, 262144, 1e-6, nextKeys(32, map[string]any{
			"expert_count": uint32(512), "expert_used_count": uint32(10), "expert_feed_forward_length": uint32(512),
			"expert_shared_feed_forward_length": uint32(512)})), []string{"output.weight"}, every(48), 75,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal(engine.Mixer{Kind: engine.MixDelta, Heads: 32, KVHeads: 16, KeyDim: 128, ValueDim: 128, Conv: 4, Rope: engine.NoRope}, d.Layers[0].Mixer)
				must.Equal(engine.Mixer{Kind: engine.MixAttention, Heads: 16, KVHeads: 2, KeyDim: 256, ValueDim: 256, QKNorm: true, OutGate: true}, d.Layers[3].Mixer)
				must.Equal([]engine.Rope{{Dims: 64, Style: engine.RopeNeox, Base: 1e7, Scale: 1}}, d.Ropes)
				want := engine.Experts{Count: 512, Used: 10, Renorm: true, SharedWidth: 512, SharedGate: true}
				must.Equal(engine.MLP{Kind: engine.MLPExperts, Width: 512, Experts: want}, d.Layers[47].MLP)
			}},
		{"Qwen3.5 27B", "qwen35", published(64, 5120, 17408, 24, 4, 256, 262144, 1e-6, nextKeys(48, map[string]any{
			"rope.dimension_sections": sections, "full_attention_interval": uint32(4)})), []string{"output.weight"}, every(64), 149,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal(engine.Mixer{Kind: engine.MixDelta, Heads: 48, KVHeads: 16, KeyDim: 128, ValueDim: 128, Conv: 4, Rope: engine.NoRope, TiledHeads: true}, d.Layers[0].Mixer)
				must.Equal(engine.MLP{Kind: engine.MLPDense, Width: 17408}, d.Layers[0].MLP)
			}},
		{"Qwen3.5 35B-A3B, of a file with a layer that predicts further tokens", "qwen35moe", with(published(41, 2048, 0, 16, 2, 256, 262144, 1e-6, nextKeys(32,
			map[string]any{"rope.dimension_sections": sections, "expert_count": uint32(256), "expert_used_count": uint32(8),
				"expert_feed_forward_length": uint32(512), "expert_shared_feed_forward_length": uint32(512), "nextn_predict_layers": uint32(1)})),
			map[string]any{"feed_forward_length": nil}), []string{"output.weight", "blk.40.nextn.eh_proj.weight", "blk.40.attn_q.weight"}, every(40), 62,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal(512, d.Layers[39].MLP.Width)
				must.True(d.Layers[0].Mixer.TiledHeads)
			}},
		{"LFM2 1.2B", "lfm2", published(16, 2048, 8192, 32, 0, 64, 128000, 1e-5, map[string]any{"attention.head_count_kv": small,
			"shortconv.l_cache": uint32(3), "rope.freq_base": float32(1e6)}), nil, smallLayers, 0,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal(engine.Mixer{Kind: engine.MixConv, Conv: 3, Rope: engine.NoRope}, d.Layers[0].Mixer)
				must.Equal(engine.Mixer{Kind: engine.MixAttention, Heads: 32, KVHeads: 8, KeyDim: 64, ValueDim: 64, QKNorm: true}, d.Layers[2].Mixer)
				must.True(d.TiedHead)
				must.Equal(10*2*2048, d.StateFloats())
			}},
		{"LFM2 8B-A1B", "lfm2moe", published(24, 2048, 7168, 32, 0, 64, 128000, 1e-5, map[string]any{"attention.head_count_kv": large,
			"shortconv.l_cache": uint32(3), "rope.freq_base": float32(1e6), "leading_dense_block_count": uint32(2), "expert_gating_func": uint32(2),
			"expert_count": uint32(32), "expert_used_count": uint32(4), "expert_feed_forward_length": uint32(1792)}),
			[]string{"blk.2.exp_probs_b.bias"}, largeLayers, 0,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal(engine.MLP{Kind: engine.MLPDense, Width: 7168}, d.Layers[1].MLP)
				want := engine.Experts{Count: 32, Used: 4, Gating: engine.GateSigmoid, Renorm: true, ChoiceBias: true}
				must.Equal(engine.MLP{Kind: engine.MLPExperts, Width: 1792, Experts: want}, d.Layers[2].MLP)
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			layout, err := arch.Describe(header(t, tc.architecture, tc.keys, tc.tensors, nil), tc.architecture)
			require.NoError(t, err)
			var got mixed
			for i, l := range layout.Desc.Layers {
				switch l.Mixer.Kind {
				case engine.MixDelta:
					got.delta = append(got.delta, i)
				case engine.MixConv:
					got.conv = append(got.conv, i)
				default:
					got.attention = append(got.attention, i)
				}
			}
			require.Equal(t, tc.layers, got)
			require.Equal(t, tc.state, layout.Desc.StateFloats()*4>>20)
			tc.want(require.New(t), &layout.Desc)
		})
	}
}

func TestModelsWithStatesAreRefusedByName(t *testing.T) {
	next, next35 := smallKeys(t, "qwen3next"), smallKeys(t, "qwen35")
	conv := smallKeys(t, "lfm2")
	invalid, unsupported := arch.ErrInvalidModel, arch.ErrUnsupportedArch
	for name, tc := range map[string]struct {
		architecture string
		keys         map[string]any
		tensors      []string
		err          error
		want         string
	}{
		"tensors of old files": {"qwen3next", next, []string{"blk.0.ssm_in.weight"}, unsupported, "tensor blk.0.ssm_in.weight, which holds"},
		"one tap":              {"qwen35", with(next35, map[string]any{"ssm.conv_kernel": uint32(1)}), nil, invalid, "qwen35.ssm.conv_kernel is 1, want 2 to 64"},
		"many taps":            {"qwen35", with(next35, map[string]any{"ssm.conv_kernel": uint32(65)}), nil, invalid, "qwen35.ssm.conv_kernel is 65, want 1 to 64"},
		"no taps":              {"lfm2", with(conv, map[string]any{"shortconv.l_cache": uint32(1)}), nil, invalid, "lfm2.shortconv.l_cache is 1, want 2 to 64"},
		"a missing size":       {"qwen35", with(next35, map[string]any{"ssm.state_size": nil}), nil, invalid, "qwen35.ssm.state_size is missing"},
		"key heads that do not divide": {"qwen35", with(next35, map[string]any{"ssm.group_count": uint32(4)}), nil, invalid,
			"qwen35.ssm.time_step_rank is 6, want a multiple of qwen35.ssm.group_count, which is 4"},
		"values that do not divide": {"qwen35", with(next35, map[string]any{"ssm.inner_size": uint32(97)}), nil, invalid,
			"qwen35.ssm.inner_size is 97, want a multiple of qwen35.ssm.time_step_rank, which is 6"},
		"no attention": {"qwen35", with(next35, map[string]any{"full_attention_interval": uint32(7)}), nil, invalid,
			"qwen35.full_attention_interval is 7, want 1 to 6"},
		"no attention by the list": {"qwen35", with(next35, map[string]any{"attention.recurrent_layers": []bool{true, true, true, true, true, true}}), nil, unsupported,
			"no layer of attention (metadata qwen35.block_count is 6, "},
		"no attention by heads": {"lfm2", with(conv, map[string]any{"attention.head_count_kv": []int32{0, 0, 0, 0, 0, 0}}), nil, unsupported,
			"no layer of attention (metadata lfm2.attention.head_count_kv has none above 0)"},
		"a list of another length": {"qwen35", with(next35, map[string]any{"attention.recurrent_layers": []bool{true, false}}), nil, invalid,
			"qwen35.attention.recurrent_layers has 2 values, want one for each of 6 layers"},
		"a list of another kind": {"qwen35", with(next35, map[string]any{"attention.recurrent_layers": true}), nil, invalid,
			"qwen35.attention.recurrent_layers is bool, want a list"},
		"sections of another sum": {"qwen35", with(next35, map[string]any{"rope.dimension_sections": []int32{2, 1, 0, 0}}), nil, invalid,
			"qwen35.rope.dimension_sections is [2 1 0 0], want numbers whose sum is 4, half of qwen35.rope.dimension_count"},
		"no sections": {"qwen35", with(next35, map[string]any{"rope.dimension_sections": nil}), nil, invalid, "qwen35.rope.dimension_sections is missing"},
		"a state of another family": {"qwen3", with(smallKeys(t, "qwen3"), map[string]any{"ssm.state_size": uint32(16)}), nil, unsupported,
			"layers with a recurrent state (metadata qwen3.ssm.state_size is 16)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := arch.Describe(header(t, tc.architecture, tc.keys, tc.tensors, nil), tc.architecture)
			require.ErrorIs(t, err, tc.err)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func smallKeys(t *testing.T, name string) map[string]any {
	t.Helper()
	shape, ok := synth.Small(name)
	require.True(t, ok)
	return shape.Family.Keys
}

func TestListedLayersCarryAState(t *testing.T) {
	keys := with(smallKeys(t, "qwen35"), map[string]any{"attention.recurrent_layers": []bool{false, true, true, true, true, false}})
	layout, err := arch.Describe(header(t, "qwen35", keys, nil, nil), "qwen35")
	require.NoError(t, err)
	for i, l := range layout.Desc.Layers {
		require.Equal(t, i > 0 && i < 5, l.Mixer.Kind == engine.MixDelta, "layer %d", i)
	}
}

func TestBetaAndAlphaAreViewsByKeyHead(t *testing.T) {
	// Four value heads of two key heads: the file has beta of heads 0 and 1, their alpha, and those
	// of 2 and 3.
	w := smallModel(t, "qwen3next", 0)
	row := func(role engine.Role, head int) []float32 {
		tensor := w.Tensors[w.Find(role, 0)]
		require.Equal(t, []int64{48, 4}, tensor.Dims)
		out := make([]float32, 48)
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(tensor.Bytes[(head*48+i)*4:]))
		}
		return out
	}
	shape, _ := synth.Small("qwen3next")
	var text bytes.Buffer
	require.NoError(t, synth.Write(&text, shape, synth.Only(gguf.F32), 1))
	f, err := gguf.Parse(text.Bytes())
	require.NoError(t, err)
	tensor, ok := f.Tensor("blk.0.ssm_ba.weight")
	require.True(t, ok)
	require.Equal(t, []uint64{48, 8}, tensor.Dims)
	for i, want := range [][]float32{
		row(engine.RoleDeltaBeta, 0), row(engine.RoleDeltaBeta, 1), row(engine.RoleDeltaAlpha, 0), row(engine.RoleDeltaAlpha, 1),
		row(engine.RoleDeltaBeta, 2), row(engine.RoleDeltaBeta, 3), row(engine.RoleDeltaAlpha, 2), row(engine.RoleDeltaAlpha, 3),
	} {
		got := make([]float32, 48)
		_, err := binary.Decode(f.Bytes(tensor)[i*48*4:], binary.LittleEndian, got)
		require.NoError(t, err)
		require.Equal(t, want, got, "row %d", i)
	}
}
