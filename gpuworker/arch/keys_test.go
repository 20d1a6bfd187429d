package arch_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// changing are keys of llama.cpp that change results, with a value that no small model has.
var changing = map[string]any{
	"attention.causal":                  false,
	"attention.clamp_kqv":               float32(8),
	"attention.group_norm_groups":       uint32(2),
	"attention.key_length_mla":          uint32(24),
	"attention.key_length_swa":          uint32(14),
	"attention.kv_lora_rank":            uint32(8),
	"attention.layer_norm_rms_epsilon":  float32(1e-4),
	"attention.max_alibi_bias":          float32(8),
	"attention.output_scale":            float32(2),
	"attention.q_lora_rank":             uint32(8),
	"attention.recurrent_layers":        []bool{true},
	"attention.scale":                   float32(0.75),
	"attention.shared_kv_layers":        uint32(1),
	"attention.sliding_window":          uint32(17),
	"attention.sliding_window_pattern":  uint32(3),
	"attention.temperature_length":      uint32(16),
	"attention.temperature_scale":       float32(0.1),
	"attention.value_length_mla":        uint32(24),
	"attention.value_length_swa":        uint32(14),
	"attention.value_scale":             float32(2),
	"attn_logit_softcapping":            float32(20),
	"deepstack_mapping":                 []int32{-1, 0},
	"dense_2_feat_out":                  uint32(32),
	"dense_3_feat_out":                  uint32(32),
	"embedding_length_per_layer_input":  uint32(8),
	"expert_chunk_feed_forward_length":  uint32(8),
	"embedding_scale":                   float32(3),
	"expert_count":                      uint32(4),
	"expert_feed_forward_length":        uint32(32),
	"expert_gating_func":                uint32(3),
	"expert_group_count":                uint32(3),
	"expert_group_scale":                float32(3),
	"expert_group_used_count":           uint32(3),
	"expert_shared_count":               uint32(1),
	"expert_shared_feed_forward_length": uint32(32),
	"expert_used_count":                 uint32(2),
	"expert_weights_norm":               true,
	"expert_weights_scale":              float32(3),
	"experts_per_group":                 uint32(2),
	"final_logit_softcapping":           float32(20),
	"full_attention_interval":           uint32(4),
	"interleave_moe_layer_step":         uint32(2),
	"leading_dense_block_count":         uint32(2),
	"logit_scale":                       float32(3),
	"moe_every_n_layers":                uint32(2),
	"moe_latent_size":                   uint32(8),
	"nextn_predict_layers":              uint32(1),
	"residual_scale":                    float32(3),
	"rope.dimension_count":              uint32(4),
	"rope.dimension_count_swa":          uint32(4),
	"rope.dimension_sections":           []int32{1, 1, 1, 0},
	"rope.freq_base":                    float32(12345),
	"rope.freq_base_swa":                float32(12345),
	"rope.scaling.alpha":                float32(2),
	"rope.scaling.attn_factor":          float32(2),
	"rope.scaling.factor":               float32(3),
	"rope.scaling.type":                 "yarn",
	"router_logit_softcapping":          float32(30),
	"shortconv.l_cache":                 uint32(4),
	"ssm.conv_kernel":                   uint32(3),
	"ssm.dt_b_c_rms":                    true,
	"ssm.group_count":                   uint32(1),
	"ssm.inner_size":                    uint32(192),
	"ssm.state_size":                    uint32(24),
	"ssm.time_step_rank":                uint32(2),
	"swiglu_clamp_exp":                  []float32{7},
	"swiglu_clamp_shexp":                []float32{7},
	"swin_norm":                         true,
	"use_parallel_residual":             true,
}

func TestNoKeyThatChangesResultsIsIgnored(t *testing.T) {
	// A key that changes results changes the description, or the file is refused.
	for _, name := range smallModels() {
		base, err := describe(t, name, "", nil)
		require.NoError(t, err, name)
		shape, _ := synth.Small(name)
		for key, value := range changing {
			if key == "attention.sliding_window_pattern" && slices.Max(windows(base)) == 0 {
				continue // a pattern of no window
			}
			if name == "gemma-embedding" && strings.HasPrefix(key, "dense_") {
				continue // they change the layers after the pooling
			}
			if e := base.Layers[len(base.Layers)-1].MLP.Experts; key == "expert_weights_norm" && e.Count > 0 {
				value = !e.Renorm
			}
			if fmt.Sprint(shape.Family.Keys[key]) == fmt.Sprint(value) {
				continue
			}
			got, err := describe(t, name, key, value)
			switch {
			case err == nil && fmt.Sprint(*got) == fmt.Sprint(*base):
				t.Errorf("%s ignores %s", name, key)
			case err != nil && key != "rope.scaling.type": // yarn lacks keys, or meets factors
				require.ErrorContains(t, err, shape.Architecture+"."+key)
			}
		}
	}
}

// describe returns the description of a small model with one key changed.
func describe(t *testing.T, name, key string, value any) (*engine.ModelDesc, error) {
	t.Helper()
	shape, ok := synth.Small(name)
	require.True(t, ok)
	family := *shape.Family
	family.Keys = maps.Clone(family.Keys)
	if key != "" {
		family.Keys[key] = value
	}
	factors := divisorsOf(&family)
	for name, list := range factors {
		if rope, _ := value.(uint32); key == "rope.dimension_count" && list != nil {
			factors[name] = list[:rope/2]
		}
	}
	layout, err := arch.Describe(header(t, shape.Architecture, family.Keys, family.Tensors, factors), shape.Architecture)
	if err != nil {
		return nil, err
	}
	return &layout.Desc, nil
}

// TestPublishedModelsGiveTheirNetworks parses the keys that published files of each family have, of
// the sizes in which their networks differ.
func TestPublishedModelsGiveTheirNetworks(t *testing.T) {
	sqrt := func(v float64) float32 { return float32(math.Sqrt(v)) }
	for _, tc := range []struct {
		name, architecture string
		keys               map[string]any
		tensors            []string
		want               func(r *require.Assertions, d *engine.ModelDesc)
	}{
		{"Gemma 2 9B", "gemma2", published(42, 3584, 14336, 16, 8, 256, 8192, 1e-6, map[string]any{
			"attention.sliding_window": uint32(4096), "attn_logit_softcapping": float32(50), "final_logit_softcapping": float32(30)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{4096, 0, 4096, 0}, windows(d)[:4])
				m := d.Layers[1].Mixer
				r.Equal([]float32{50, 30, 0, sqrt(3584)}, []float32{m.ScoreCap, d.LogitCap, m.Scale, d.EmbeddingScale})
				r.Equal([]engine.Rope{{Dims: 256, Style: engine.RopeNeox, Base: 10000, Scale: 1}}, d.Ropes)
				r.True(d.TiedHead && m.EndNorm && d.Layers[1].MLP.EndNorm && !m.QKNorm && !m.NoNorm)
				r.Equal(engine.GELUTanh, d.Layers[1].MLP.Activation)
			}},
		{"Gemma 2 2B of an early converter", "gemma2", published(26, 2304, 9216, 8, 4, 256, 8192, 1e-6, nil), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{4096, 0}, windows(d)[:2])
				r.Equal([]float32{50, 30}, []float32{d.Layers[0].Mixer.ScoreCap, d.LogitCap})
			}},
		{"Gemma 2 27B", "gemma2", published(46, 4608, 36864, 32, 16, 128, 8192, 1e-6, map[string]any{"attention.sliding_window": uint32(4096)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal(1/sqrt(4608/32), d.Layers[0].Mixer.Scale, "query_pre_attn_scalar is 144, and the heads are 128 wide")
			}},
		{"Gemma 3 1B", "gemma3", published(26, 1152, 6912, 4, 1, 256, 32768, 1e-6, map[string]any{
			"attention.sliding_window": uint32(512), "rope.freq_base": float32(1e6)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{512, 512, 512, 512, 512, 0, 512, 512, 512, 512, 512, 0}, windows(d)[:12])
				r.Equal([]float32{1e6, 1}, []float32{d.Ropes[0].Base, d.Ropes[0].Scale})
				r.Equal([]float32{1e4, 1}, []float32{d.Ropes[1].Base, d.Ropes[1].Scale})
				r.Equal([]int{1, 1, 1, 1, 1, 0, 1}, ropesOf(d)[:7])
				m := d.Layers[0].Mixer
				r.True(m.QKNorm && m.EndNorm && m.Scale == 0 && m.ScoreCap == 0 && d.LogitCap == 0 && d.TiedHead)
				r.Equal(sqrt(1152), d.EmbeddingScale)
			}},
		{"Gemma 3 270M", "gemma3", published(18, 640, 2048, 4, 1, 256, 32768, 1e-6, map[string]any{
			"attention.sliding_window": uint32(512), "rope.freq_base": float32(1e6)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{0, 512}, windows(d)[5:7])
				r.Equal(256, d.Layers[0].Mixer.KeyDim)
			}},
		{"EmbeddingGemma 300M", "gemma-embedding", published(24, 768, 1152, 3, 1, 256, 2048, 1e-6, map[string]any{
			"attention.sliding_window": uint32(512), "rope.freq_base": float32(1e6), "pooling_type": uint32(1)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{257, 257, 257, 257, 257, 0, 257}, windows(d)[:7], "256 positions on each side")
				r.Equal([]int{1, 1, 1, 1, 1, 0, 1}, ropesOf(d)[:7])
				r.Equal([]float32{1e6, 1e4}, []float32{d.Ropes[0].Base, d.Ropes[1].Base})
				for _, l := range d.Layers {
					r.True(l.Mixer.Bidirectional && l.Mixer.QKNorm && l.Mixer.EndNorm && l.MLP.EndNorm && l.Mixer.Scale == 0)
				}
			}},
		{"a Gemma 3 without windows", "gemma3", published(32, 4096, 16384, 32, 8, 128, 32768, 1e-6, map[string]any{
			"rope.freq_base": float32(1e4), "final_logit_softcapping": float32(30)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Zero(slices.Max(windows(d)))
				r.Len(d.Ropes, 1, "every layer rotates by rope.freq_base")
				r.EqualValues(30, d.LogitCap)
			}},
		{"Gemma 3 12B", "gemma3", published(48, 3840, 15360, 16, 8, 256, 131072, 1e-6, map[string]any{
			"attention.sliding_window": uint32(1024), "rope.freq_base": float32(1e6), "rope.scaling.type": "linear", "rope.scaling.factor": float32(8)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]float32{8, 1}, []float32{d.Ropes[0].Scale, d.Ropes[1].Scale}, "positions within windows are not stretched")
				r.Zero(d.Layers[0].Mixer.Scale)
			}},
		{"Gemma 3 27B", "gemma3", published(62, 5376, 21504, 32, 16, 128, 131072, 1e-6, map[string]any{
			"attention.sliding_window": uint32(1024), "rope.freq_base": float32(1e6), "rope.scaling.type": "linear", "rope.scaling.factor": float32(8)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal(1/sqrt(5376/32), d.Layers[0].Mixer.Scale, "query_pre_attn_scalar is 168, and the heads are 128 wide")
			}},
		{"Gemma 4 31B", "gemma4", published(60, 5376, 21504, 32, 16, 512, 262144, 1e-6, map[string]any{
			"attention.sliding_window": uint32(1024), "attention.sliding_window_pattern": slices.Repeat([]bool{true, true, true, true, true, false}, 10),
			"attention.head_count_kv": slices.Repeat([]int32{16, 16, 16, 16, 16, 4}, 10), "attention.key_length_swa": uint32(256), "attention.value_length_swa": uint32(256),
			"rope.dimension_count": uint32(512), "rope.dimension_count_swa": uint32(256), "rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4),
			"final_logit_softcapping": float32(30), "embedding_length_per_layer_input": uint32(0), "attention.shared_kv_layers": uint32(0)}),
			[]string{"blk.0.attn_v.weight", "blk.5.layer_output_scale.weight"}, func(r *require.Assertions, d *engine.ModelDesc) {
				near, far := d.Layers[0].Mixer, d.Layers[5].Mixer
				r.Equal([]int{1024, 16, 256, 1}, []int{near.Window, near.KVHeads, near.KeyDim, near.Rope})
				r.Equal([]int{0, 4, 512, 0}, []int{far.Window, far.KVHeads, far.KeyDim, far.Rope})
				r.True(!near.ValueIsKey && far.ValueIsKey && near.VNorm && far.VNorm && d.Layers[5].OutputScale && !d.Layers[0].OutputScale)
				r.Equal([]float32{1, 30, sqrt(5376)}, []float32{far.Scale, d.LogitCap, d.EmbeddingScale})
				r.Equal(slices.Concat(slices.Repeat([]float64{1}, 64), slices.Repeat([]float64{float64(float32(1e30))}, 192)), d.Ropes[0].Divisors, "a quarter of a head rotates")
			}},
		{"Gemma 4 26B-A4B", "gemma4", published(30, 2816, 2112, 16, 8, 512, 262144, 1e-6, map[string]any{
			"attention.sliding_window":         uint32(1024),
			"attention.sliding_window_pattern": slices.Repeat([]bool{true, true, true, true, true, false}, 5),
			"attention.head_count_kv":          slices.Repeat([]int32{8, 8, 8, 8, 8, 2}, 5),
			"attention.key_length_swa":         uint32(256), "attention.value_length_swa": uint32(256),
			"rope.dimension_count": uint32(512), "rope.dimension_count_swa": uint32(256),
			"rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4), "final_logit_softcapping": float32(30),
			"embedding_length_per_layer_input": uint32(0), "attention.shared_kv_layers": uint32(0),
			"expert_count": uint32(128), "expert_used_count": uint32(8), "expert_feed_forward_length": uint32(704)}),
			[]string{"blk.0.attn_v.weight", "blk.0.ffn_gate_up_exps.weight"}, func(r *require.Assertions, d *engine.ModelDesc) {
				want := engine.Experts{Count: 128, Used: 8, Renorm: true, Scales: true, SharedWidth: 2112, Apart: true}
				r.Equal(engine.MLP{Kind: engine.MLPExperts, Activation: engine.GELUTanh, Width: 704, EndNorm: true, Experts: want}, d.Layers[29].MLP)
				r.True(d.Layers[29].Mixer.ValueIsKey && d.Layers[29].Mixer.KVHeads == 2)
			}},
		{"OLMo 2 7B", "olmo2", published(32, 4096, 11008, 32, 32, 128, 4096, 1e-6, map[string]any{"rope.freq_base": float32(5e5)}), []string{"output.weight"},
			func(r *require.Assertions, d *engine.ModelDesc) {
				m := d.Layers[0].Mixer
				r.True(m.NoNorm && m.EndNorm && m.QKRowNorm && !m.QKNorm && d.Layers[0].MLP.NoNorm && d.Layers[0].MLP.EndNorm && !d.TiedHead)
				r.Len(d.Ropes, 1)
				r.Zero(slices.Max(windows(d)))
			}},
		{"OLMo 3 7B", "olmo2", published(32, 4096, 11008, 32, 32, 128, 65536, 1e-6, map[string]any{
			"rope.freq_base": float32(5e5), "attention.sliding_window": uint32(4096), "attention.sliding_window_pattern": slices.Repeat([]bool{true, true, true, false}, 8),
			"rope.scaling.type": "yarn", "rope.scaling.factor": float32(8), "rope.scaling.original_context_length": uint32(8192), "rope.scaling.yarn_attn_factor": float32(1.2079441)}),
			[]string{"output.weight"}, func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{4096, 4096, 4096, 0, 4096}, windows(d)[:5])
				r.Equal([]int{1, 1, 1, 0, 1}, ropesOf(d)[:5])
				r.NotNil(d.Ropes[0].Divisors)
				r.Equal(engine.Rope{Dims: 128, Style: engine.RopeNeox, Base: 5e5, Scale: 1}, d.Ropes[1], "YaRN is of the layers without a window")
			}},
		{"SmolLM 3 3B", "smollm3", published(36, 2048, 11008, 16, 4, 128, 65536, 1e-6, map[string]any{"rope.freq_base": float32(5e6)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{0, 0, 0, engine.NoRope, 0, 0, 0, engine.NoRope}, ropesOf(d)[:8])
				r.Equal(engine.RopeNorm, d.Ropes[0].Style)
				r.True(d.TiedHead)
			}},
		{"Granite 3.3 8B", "granite", published(40, 4096, 12800, 32, 8, 128, 131072, 1e-5, map[string]any{"rope.freq_base": float32(1e7),
			"attention.scale": float32(0.0078125), "embedding_scale": float32(12), "residual_scale": float32(0.22), "logit_scale": float32(16)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]float32{12, 0.22, 1.0 / 16, 0.0078125}, []float32{d.EmbeddingScale, d.ResidualScale, d.LogitScale, d.Layers[0].Mixer.Scale})
				r.Equal(engine.RopeNorm, d.Ropes[0].Style)
			}},
		{"a Granite without positions", "granite", published(2, 4096, 12800, 32, 8, 128, 131072, 1e-5, map[string]any{"logit_scale": float32(16), "rope.scaling.finetuned": false}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{engine.NoRope, engine.NoRope}, ropesOf(d))
				r.Empty(d.Ropes)
			}},
		{"EXAONE 4 1.2B", "exaone4", published(30, 2048, 4096, 32, 8, 64, 65536, 1e-5, map[string]any{"rope.freq_base": float32(1e6)}), nil,
			func(r *require.Assertions, d *engine.ModelDesc) {
				m := d.Layers[3].Mixer
				r.True(m.NoNorm && m.EndNorm && m.QKNorm && m.Rope == 0 && m.Window == 0 && d.Layers[3].MLP.NoNorm && d.Layers[3].MLP.EndNorm)
			}},
		{"EXAONE 4 32B", "exaone4", published(64, 5120, 27392, 40, 8, 128, 131072, 1e-5, map[string]any{"rope.freq_base": float32(1e6),
			"attention.sliding_window": uint32(4096), "attention.sliding_window_pattern": slices.Repeat([]bool{true, true, true, false}, 16)}), []string{"output.weight"},
			func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{4096, 4096, 4096, 0}, windows(d)[:4])
				r.Equal([]int{0, 0, 0, engine.NoRope}, ropesOf(d)[:4], "layers without a window do not encode positions")
			}},
		{"Seed-OSS 36B", "seed_oss", published(64, 5120, 27648, 80, 8, 128, 524288, 1e-6, map[string]any{"rope.freq_base": float32(1e7)}),
			[]string{"output.weight", "blk.0.attn_q.bias"}, func(r *require.Assertions, d *engine.ModelDesc) {
				r.True(d.Layers[0].Mixer.QKVBias && !d.Layers[0].Mixer.OutBias && !d.Layers[0].Mixer.EndNorm)
			}},
		{"Mistral 7B 0.1 with its window", "llama", published(32, 4096, 14336, 32, 8, 128, 32768, 1e-5, map[string]any{"attention.sliding_window": uint32(4096)}),
			[]string{"output.weight"}, func(r *require.Assertions, d *engine.ModelDesc) {
				r.Equal([]int{4096, 4096}, []int{slices.Min(windows(d)), slices.Max(windows(d))})
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var factors []float64
			if tc.architecture == "gemma4" {
				factors = slices.Concat(slices.Repeat([]float64{1}, 64), slices.Repeat([]float64{1e30}, 192))
			}
			f := header(t, tc.architecture, tc.keys, tc.tensors, map[string][]float64{arch.RopeFactorsName: factors})
			layout, err := arch.Describe(f, tc.architecture)
			require.NoError(t, err)
			tc.want(require.New(t), &layout.Desc)
		})
	}
}

// published returns the keys that files of every architecture have, and more.
func published(layers, hidden, ffn, heads, kvHeads, headDim, context uint32, eps float32, more map[string]any) map[string]any {
	out := map[string]any{
		"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "vocab_size": uint32(1000), "context_length": context,
		"attention.head_count": heads, "attention.head_count_kv": kvHeads, "attention.key_length": headDim, "attention.value_length": headDim,
		"attention.layer_norm_rms_epsilon": eps,
	}
	maps.Copy(out, more)
	return out
}

// divisorsOf returns the lists of divisors of frequencies by the names of their tensors.
func divisorsOf(f *synth.Family) map[string][]float64 {
	return map[string][]float64{arch.RopeFactorsName: f.Factors, arch.LongFactorsName: f.Long, arch.ShortFactorsName: f.Short}
}

// header returns a file of keys, of divisors of frequencies, if there are any, and of tensors of which
// only the names count.
func header(t *testing.T, architecture string, keys map[string]any, tensors []string, factors map[string][]float64) *gguf.File {
	t.Helper()
	var file bytes.Buffer
	w := gguf.NewWriter(&file)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		w.Set(architecture+"."+key, keys[key])
	}
	var data []byte
	for _, name := range slices.Sorted(maps.Keys(factors)) {
		if len(factors[name]) == 0 {
			continue
		}
		w.Tensor(name, gguf.F32, uint64(len(factors[name])))
		for _, v := range factors[name] {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
	}
	for _, name := range tensors {
		w.Tensor(name, gguf.F32, 1)
		data = append(data, 0, 0, 0, 0)
	}
	require.NoError(t, w.Begin())
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	return f
}

func windows(d *engine.ModelDesc) []int {
	var out []int
	for _, l := range d.Layers {
		out = append(out, l.Mixer.Window)
	}
	return out
}

func ropesOf(d *engine.ModelDesc) []int {
	var out []int
	for _, l := range d.Layers {
		out = append(out, l.Mixer.Rope)
	}
	return out
}
