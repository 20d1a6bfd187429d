package arch_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// mixed gives the layers of a model stacks of four experts, of which a token uses two, in place of
// its dense MLPs.
func mixed(m *model, layers ...int) *model {
	name := m.meta["general.architecture"].(string)
	m.set(name+".expert_count", uint32(4)).set(name+".expert_used_count", uint32(2))
	for _, i := range layers {
		blk := func(suffix string) string { return fmt.Sprintf("blk.%d.%s", i, suffix) }
		m.remove(blk("ffn_gate.weight")).remove(blk("ffn_up.weight")).remove(blk("ffn_down.weight"))
		m.add(blk("ffn_gate_inp.weight"), gguf.F32, 96, 4).add(blk("ffn_gate_exps.weight"), gguf.Q8_0, 96, 160, 4)
		m.add(blk("ffn_up_exps.weight"), gguf.Q4_0, 96, 160, 4).add(blk("ffn_down_exps.weight"), gguf.IQ4NL, 160, 96, 4)
	}
	return m
}

func mixtral() *model { return mixed(llama(), 0, 1) }

// qwen2moe is a model of an early converter: the width of an expert is that of the dense MLP over
// the experts used, and that of the shared one is all of it.
func qwen2moe() *model {
	m := biased(mixed(small("qwen2moe", 24), 0, 1))
	for i := range 2 {
		blk := func(suffix string) string { return fmt.Sprintf("blk.%d.%s", i, suffix) }
		m.replace(blk("ffn_gate_exps.weight"), gguf.Q8_0, 96, 80, 4).replace(blk("ffn_up_exps.weight"), gguf.Q8_0, 96, 80, 4)
		m.replace(blk("ffn_down_exps.weight"), gguf.F16, 80, 96, 4).add(blk("ffn_gate_inp_shexp.weight"), gguf.F16, 96, 1)
		m.add(blk("ffn_gate_shexp.weight"), gguf.Q8_0, 96, 160).add(blk("ffn_up_shexp.weight"), gguf.Q8_0, 96, 160)
		m.add(blk("ffn_down_shexp.weight"), gguf.Q8_0, 160, 96)
	}
	return m
}

// glm4moe has a layer of experts and one that predicts further tokens.
func glm4moe() *model {
	m := mixed(small("glm4moe", 24), 0).set("glm4moe.nextn_predict_layers", uint32(1)).set("glm4moe.expert_feed_forward_length", uint32(160))
	return m.remove("blk.0.ffn_norm.weight").add("blk.0.post_attention_norm.weight", gguf.F32, 96).add("blk.0.exp_probs_b.bias", gguf.F32, 4).
		add("blk.1.nextn.eh_proj.weight", gguf.Q8_0, 192, 96).add("blk.1.ffn_gate_exps.weight", gguf.Q8_1, 96, 160, 4)
}

// fusedMixtral has one stack for gate and up, with the given rows for each expert.
func fusedMixtral(rows uint64) *model {
	m := mixtral()
	for i := range 2 {
		blk := func(suffix string) string { return fmt.Sprintf("blk.%d.%s", i, suffix) }
		m.remove(blk("ffn_gate_exps.weight")).remove(blk("ffn_up_exps.weight")).add(blk("ffn_gate_up_exps.weight"), gguf.Q8_0, 96, rows, 4)
	}
	return m
}

// gptOSS has its matrices in MXFP4 and its biases in types that published files have.
func gptOSS() *model {
	m := biased(mixed(small("gpt-oss", 24), 0, 1))
	for i := range 2 {
		blk := func(suffix string) string { return fmt.Sprintf("blk.%d.%s", i, suffix) }
		m.remove(blk("ffn_norm.weight")).add(blk("post_attention_norm.weight"), gguf.F32, 96)
		m.add(blk("attn_sinks.weight"), gguf.F32, 4).add(blk("attn_output.bias"), gguf.F32, 96).add(blk("ffn_gate_inp.bias"), gguf.F32, 4)
		for _, part := range []string{"ffn_gate_exps", "ffn_up_exps"} {
			m.replace(blk(part+".weight"), gguf.MXFP4, 96, 160, 4).add(blk(part+".bias"), gguf.BF16, 160, 4)
		}
		m.replace(blk("ffn_down_exps.weight"), gguf.MXFP4, 160, 96, 4).add(blk("ffn_down_exps.bias"), gguf.F32, 96, 4)
	}
	return m
}

func TestFusedStacksGiveEachExpertItsRows(t *testing.T) {
	// Each matrix of a fused stack has the rows of a gate and then those of its up.
	shape, ok := synth.Small("gemma4-experts")
	require.True(t, ok)
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.F16), 1))
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	views, parameters := 0, uint64(0)
	for _, b := range m.Bindings {
		parameters += b.Tensor.Elements()
		from, fused := map[engine.Role]int{engine.RoleExpertGate: 0, engine.RoleExpertUp: 20}[b.Desc.Role]
		if !fused {
			continue
		}
		views++
		whole, ok := f.Tensor(fmt.Sprintf("blk.%d.ffn_gate_up_exps.weight", b.Desc.Layer))
		require.True(t, ok)
		require.Equal(t, []uint64{48, 40, 12}, whole.Dims)
		require.Equal(t, whole.Name, b.File)
		require.Equal(t, fmt.Sprintf("%s[%d:%d]", whole.Name, from, from+20), b.Tensor.Name)
		require.Equal(t, engine.TensorDesc{Role: b.Desc.Role, Layer: b.Desc.Layer, Type: engine.F16, Dims: []int64{48, 20, 12}}, b.Desc)
		all, got := f.Bytes(whole), make([]byte, b.Bytes())
		require.NoError(t, b.ReadAt(f, got, 0))
		const rows = 20 * 48 * 2 // bytes
		for expert := range 12 {
			begin := 2*rows*expert + from*48*2
			require.Equal(t, all[begin:begin+rows], got[rows*expert:rows*(expert+1)], "%v of expert %d", b.Desc.Role, expert)
		}
	}
	require.Equal(t, 2*6, views)
	require.Equal(t, parameters, m.Parameters)
}

func TestBothFormsOfStacksGiveOneModel(t *testing.T) {
	m, err := fusedMixtral(320).parse(t)
	require.NoError(t, err)
	apart, err := mixtral().parse(t)
	require.NoError(t, err)
	require.Equal(t, apart.Desc, m.Desc)
	require.Equal(t, apart.Parameters, m.Parameters)
	require.Len(t, m.Bindings, len(apart.Bindings))
}

func TestGptOSSBindsBiasesOfExperts(t *testing.T) {
	m, err := gptOSS().set("general.file_type", uint32(38)).parse(t)
	require.NoError(t, err)
	require.Equal(t, "MXFP4_MOE", m.Quantization)
	require.Len(t, m.Bindings, 3+2*19)
	for i, l := range m.Desc.Layers {
		require.True(t, l.Mixer.Sinks && l.Mixer.QKVBias && l.Mixer.OutBias && !l.Mixer.EndNorm, "layer %d", i)
		want := engine.Experts{Count: 4, Used: 2, Renorm: true, RouterBias: true, Bias: true}
		require.Equal(t, engine.MLP{Kind: engine.MLPExperts, Activation: engine.ClampedSwish, Width: 160, Experts: want}, l.MLP)
	}
	descs := map[engine.Role]engine.TensorDesc{}
	for _, b := range m.Bindings {
		if b.Desc.Layer == 1 {
			descs[b.Desc.Role] = b.Desc
			require.Equal(t, b.Desc.Role == engine.RoleExpertGateBias || b.Desc.Role == engine.RoleExpertUpBias, b.Widens(), b.File)
		}
	}
	for _, want := range []engine.TensorDesc{
		{Role: engine.RoleExpertUpBias, Layer: 1, Type: engine.F32, Dims: []int64{160, 4}},
		{Role: engine.RoleExpertDown, Layer: 1, Type: engine.MXFP4, Dims: []int64{160, 96, 4}},
		{Role: engine.RoleSinks, Layer: 1, Type: engine.F32, Dims: []int64{4}},
	} {
		require.Equal(t, want, descs[want.Role])
	}
}

func TestStacksAreBoundWhole(t *testing.T) {
	m, err := mixtral().parse(t)
	require.NoError(t, err)
	require.Len(t, m.Bindings, 3+2*10)
	want := engine.MLP{Kind: engine.MLPExperts, Width: 160, Experts: engine.Experts{Count: 4, Used: 2, Renorm: true}}
	require.Equal(t, []engine.MLP{want, want}, []engine.MLP{m.Desc.Layers[0].MLP, m.Desc.Layers[1].MLP})
	last := m.Bindings[len(m.Bindings)-4:]
	for i, stack := range []engine.TensorDesc{
		{Role: engine.RoleRouter, Layer: 1, Type: engine.F32, Dims: []int64{96, 4}},
		{Role: engine.RoleExpertGate, Layer: 1, Type: engine.Q8_0, Dims: []int64{96, 160, 4}},
		{Role: engine.RoleExpertUp, Layer: 1, Type: engine.Q4_0, Dims: []int64{96, 160, 4}},
		{Role: engine.RoleExpertDown, Layer: 1, Type: engine.IQ4NL, Dims: []int64{160, 96, 4}},
	} {
		require.Equal(t, stack, last[i].Desc)
		require.Equal(t, last[i].File, last[i].Tensor.Name)
	}
	require.EqualValues(t, 4*96*160/32*34, last[1].Tensor.Size)
	require.EqualValues(t, 2*50*96+96+2*(2*96+2*96*96+2*96*48+96*4+4*3*96*160), m.Parameters)
}

func TestRoutersAndGatesHaveTheirTypes(t *testing.T) {
	// A router may have any type of a matrix, and a gate of the shared expert, a vector, is F32 for
	// the engine.
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0} {
		m, err := mixtral().replace("blk.1.ffn_gate_inp.weight", typ, 96, 4).parse(t)
		require.NoError(t, err, "%v", typ)
		require.EqualValues(t, typ, m.Bindings[len(m.Bindings)-1].Desc.Type)
	}
	m, err := qwen2moe().parse(t)
	require.NoError(t, err)
	gates := 0
	for _, b := range m.Bindings {
		if b.Desc.Role == engine.RoleSharedRouter {
			require.True(t, b.Widens())
			require.Equal(t, []int64{96}, b.Desc.Dims)
			gates++
		}
	}
	require.Equal(t, 2, gates)
	want := engine.Experts{Count: 4, Used: 2, SharedWidth: 160, SharedGate: true}
	require.Equal(t, engine.MLP{Kind: engine.MLPExperts, Width: 80, Experts: want}, m.Desc.Layers[1].MLP)
}

func TestOneExpertNeedsNoThirdDimension(t *testing.T) {
	m := mixtral().set("llama.expert_count", uint32(1)).set("llama.expert_used_count", uint32(1))
	for i := range 2 {
		m.replace(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", i), gguf.F32, 96)
		for _, suffix := range []string{"ffn_gate_exps.weight", "ffn_up_exps.weight"} {
			m.replace(fmt.Sprintf("blk.%d.%s", i, suffix), gguf.F16, 96, 160)
		}
		m.replace(fmt.Sprintf("blk.%d.ffn_down_exps.weight", i), gguf.F16, 160, 96, 1)
	}
	parsed, err := m.parse(t)
	require.NoError(t, err)
	require.Equal(t, 1, parsed.Desc.Layers[0].MLP.Experts.Count)
}

func TestLayersThatPredictTokensAreSkipped(t *testing.T) {
	m, err := glm4moe().parse(t)
	require.NoError(t, err)
	require.Len(t, m.Desc.Layers, 1)
	require.Len(t, m.Bindings, 3+11)
	for _, b := range m.Bindings {
		require.LessOrEqual(t, b.Desc.Layer, 0, b.File)
	}
	_, err = glm4moe().add("blk.2.attn_norm.weight", gguf.F32, 96).parse(t)
	require.ErrorContains(t, err, "blk.2.attn_norm.weight is of no layer from 0 to 1")
	_, err = glm4moe().set("glm4moe.nextn_predict_layers", uint32(2)).parse(t)
	require.ErrorContains(t, err, "glm4moe.nextn_predict_layers is 2, want at most 1")
}

func TestMixturesAreRefusedByName(t *testing.T) {
	invalid, unsupported := arch.ErrInvalidModel, arch.ErrUnsupportedArch
	// groups of a model of 12 experts, of which a token uses 3.
	groups := func(count, used uint32) *model {
		return glm4moe().set("glm4moe.expert_count", uint32(12)).set("glm4moe.expert_used_count", uint32(3)).
			set("glm4moe.expert_group_count", count).set("glm4moe.expert_group_used_count", used)
	}
	for name, tc := range map[string]struct {
		model *model
		kind  error
		want  string
	}{
		"no number of experts": {qwen2moe().unset("qwen2moe.expert_count"), invalid, "qwen2moe.expert_count is missing"},
		"0 experts": {qwen2moe().set("qwen2moe.expert_count", uint32(0)),
			invalid, "qwen2moe.expert_count is 0, want 1 to 4096"},
		"too many experts": {mixtral().set("llama.expert_count", uint32(4097)),
			invalid, "llama.expert_count is 4097, want 1 to 4096"},
		"no number of used ones": {mixtral().unset("llama.expert_used_count"),
			invalid, "metadata llama.expert_count is 4 and llama.expert_used_count is missing"},
		"0 used": {mixtral().set("llama.expert_used_count", uint32(0)),
			invalid, "llama.expert_used_count is 0, want 1 to 4"},
		"more used than there": {mixtral().set("llama.expert_used_count", uint32(5)),
			invalid, "llama.expert_used_count is 5, want 1 to 4"},
		"a width beyond all": {mixtral().set("llama.expert_feed_forward_length", uint32(1<<22+1)),
			invalid, "expert_feed_forward_length is 4194305, want at most 4194304"},
		"another width": {mixtral().set("llama.expert_feed_forward_length", uint32(80)),
			invalid, "tensor blk.0.ffn_gate_exps.weight has dimensions [96 160 4], want [96 80 4]"},
		"another count": {mixtral().set("llama.expert_count", uint32(5)),
			invalid, "tensor blk.0.ffn_gate_inp.weight has dimensions [96 4], want [96 5]"},
		"a stack turned around": {mixtral().replace("blk.0.ffn_up_exps.weight", gguf.F16, 160, 96, 4),
			invalid, "tensor blk.0.ffn_up_exps.weight has dimensions [160 96 4], want [96 160 4]"},
		"a stack of four dims": {mixtral().replace("blk.0.ffn_up_exps.weight", gguf.F16, 96, 160, 4, 2),
			invalid, "has dimensions [96 160 4 2], want [96 160 4]"},
		"a missing stack": {mixtral().remove("blk.1.ffn_down_exps.weight"),
			invalid, "tensor blk.1.ffn_down_exps.weight is missing"},
		"a stack of Q8_1": {mixtral().replace("blk.0.ffn_up_exps.weight", gguf.Q8_1, 96, 160, 4),
			arch.ErrUnsupportedType, "tensor blk.0.ffn_up_exps.weight is Q8_1"},
		"gate and up in one and apart": {mixtral().add("blk.0.ffn_gate_up_exps.weight", gguf.F16, 96, 320, 4),
			invalid, "tensor blk.0.ffn_gate_up_exps.weight holds expert gate of layer 0, which tensor blk.0.ffn_gate_exps.weight holds too"},
		"gate and up in one too small": {fusedMixtral(160),
			invalid, "blk.0.ffn_gate_up_exps.weight has dimensions [96 160 4], want [96 320 4]: rows 160 of expert gate, 160 of expert up"},
		"gate and up in one in layer 0": {fusedMixtral(320).remove("blk.1.ffn_gate_up_exps.weight"),
			invalid, "tensor blk.1.ffn_gate_up_exps.weight, of the rows of expert gate and expert up, is missing"},
		"one tensor an expert": {mixtral().remove("blk.0.ffn_gate_exps.weight").add("blk.0.ffn_gate.0.weight", gguf.F16, 96, 160),
			unsupported, "tensor blk.0.ffn_gate.0.weight holds one expert, as in files of before April 2024"},
		"a dense layer among": {mixtral().add("blk.1.ffn_gate.weight", gguf.F16, 96, 160),
			unsupported, "tensor blk.1.ffn_gate.weight has no role"},
		"a bias of the choice": {mixtral().add("blk.1.exp_probs_b.bias", gguf.F32, 4),
			unsupported, "tensor blk.1.exp_probs_b.bias has no role"},
		"a scale for each expert": {mixtral().add("blk.1.ffn_up_exps.scale", gguf.F32, 4),
			unsupported, "tensor blk.1.ffn_up_exps.scale scales the products of blk.1.ffn_up_exps.weight, as in NVFP4 files"},
		"a scale of a matrix": {mixtral().add("blk.1.attn_q.weight.scale", gguf.F32, 1),
			unsupported, "tensor blk.1.attn_q.weight.scale scales the products of blk.1.attn_q.weight, as in NVFP4 files"},
		"a scale of inputs": {mixtral().add("output.input_scale", gguf.F32, 1),
			unsupported, "tensor output.input_scale scales the products of output.weight, as in NVFP4 files"},
		"biases of experts": {mixtral().add("blk.1.ffn_up_exps.bias", gguf.F32, 160, 4),
			unsupported, "tensor blk.1.ffn_up_exps.bias has no role"},
		"leading dense layers": {mixtral().set("llama.leading_dense_block_count", uint32(1)),
			unsupported, "dense layers before those with experts (metadata llama.leading_dense_block_count is 1)"},
		"a shared expert": {mixtral().set("llama.expert_shared_count", uint32(1)),
			unsupported, "shared expert (metadata llama.expert_shared_count is 1)"},
		"groups": {mixtral().set("llama.expert_group_count", uint32(2)),
			unsupported, "groups of experts (metadata llama.expert_group_count is 2)"},
		"softmax of the chosen": {mixtral().set("llama.expert_gating_func", uint32(3)),
			unsupported, "weights of experts of another kind than softmax and sigmoid (metadata llama.expert_gating_func is 3)"},
		"gating in words": {mixtral().set("llama.expert_gating_func", "softmax"), gguf.ErrValueType, "expert_gating_func"},
		"weights below zero": {mixtral().set("llama.expert_weights_scale", float32(-1)),
			invalid, "llama.expert_weights_scale is -1, want a finite number above 0"},
		"a norm in numbers": {mixtral().set("llama.expert_weights_norm", float32(2)), gguf.ErrValueType, "expert_weights_norm"},
		"clamped experts": {mixtral().set("llama.swiglu_clamp_exp", []float32{7}),
			unsupported, "clamped SwiGLU (metadata llama.swiglu_clamp_exp)"},
		"all layers dense": {glm4moe().set("glm4moe.leading_dense_block_count", uint32(1)),
			invalid, "leading_dense_block_count is 1, want at most 0"},
		"shared widths that part": {
			glm4moe().set("glm4moe.expert_shared_count", uint32(2)).set("glm4moe.expert_shared_feed_forward_length", uint32(160)),
			invalid, "glm4moe.expert_shared_feed_forward_length is 160, want 320: glm4moe.expert_shared_count times glm4moe.expert_feed",
		},
		"a shared expert beyond": {
			glm4moe().set("glm4moe.expert_shared_count", uint32(4096)).set("glm4moe.expert_feed_forward_length", uint32(4096)),
			invalid, "glm4moe.expert_shared_count is 4096: a shared expert of 16777216, want at most 4194304",
		},
		"a shared one of no file": {glm4moe().set("glm4moe.expert_shared_count", uint32(1)),
			invalid, "tensor blk.0.ffn_gate_shexp.weight is missing"},
		"no bias of the choice": {glm4moe().remove("blk.0.exp_probs_b.bias"), invalid, "tensor blk.0.exp_probs_b.bias is missing"},
		"groups of unlike sizes": {groups(5, 2),
			invalid, "glm4moe.expert_group_count is 5, want a number that divides the 12 of glm4moe.expert_count into groups of two or more"},
		"groups of one": {groups(12, 3), invalid, "glm4moe.expert_group_count is 12, want"},
		"no groups used": {groups(4, 0),
			invalid, "glm4moe.expert_group_used_count is 0, want 1 to the 4 of glm4moe.expert_group_count"},
		"too many groups used": {groups(4, 5), invalid, "glm4moe.expert_group_used_count is 5, want 1 to the 4"},
		"too few in the groups": {groups(6, 1),
			invalid, "glm4moe.expert_used_count is 3, want at most the 2 of glm4moe.expert_count in the 1 groups"},
		"no sinks": {gptOSS().remove("blk.1.attn_sinks.weight"), invalid, "tensor blk.1.attn_sinks.weight is missing"},
		"sinks of too few heads": {gptOSS().replace("blk.1.attn_sinks.weight", gguf.F32, 2),
			invalid, "attn_sinks.weight has dimensions [2], want [4]"},
		"sinks in a Llama": {mixtral().add("blk.1.attn_sinks.weight", gguf.F32, 4),
			unsupported, "tensor blk.1.attn_sinks.weight has no role"},
		"no router bias":    {gptOSS().remove("blk.0.ffn_gate_inp.bias"), invalid, "tensor blk.0.ffn_gate_inp.bias is missing"},
		"no bias of a down": {gptOSS().remove("blk.0.ffn_down_exps.bias"), invalid, "tensor blk.0.ffn_down_exps.bias is missing"},
		"one bias for all": {gptOSS().replace("blk.0.ffn_up_exps.bias", gguf.F32, 160),
			invalid, "tensor blk.0.ffn_up_exps.bias has dimensions [160], want [160 4]"},
		"biases in blocks": {gptOSS().replace("blk.0.ffn_up_exps.bias", gguf.Q8_0, 160, 4),
			arch.ErrUnsupportedType, "blk.0.ffn_up_exps.bias is Q8_0"},
		"a gpt-oss without experts": {gptOSS().unset("gpt-oss.expert_count"), invalid, "metadata gpt-oss.expert_count is missing"},
		"a dense gpt-oss": {gptOSS().add("blk.0.ffn_up.weight", gguf.F16, 96, 160),
			unsupported, "tensor blk.0.ffn_up.weight has no role"},
		"MiMo-V2": {llama().set("general.architecture", "mimo2"),
			unsupported, `architecture "mimo2" needs values of another width than keys, which no engine computes yet`},
		"Phi-3.5-MoE": {llama().set("general.architecture", "phimoe"),
			unsupported, `architecture "phimoe" needs layer norms, which`},
		"DeepSeek V3.2": {llama().set("general.architecture", "deepseek32"),
			unsupported, `architecture "deepseek32" needs attention to keys that an indexer chooses, which`},
		"Granite 4 with experts": {llama().set("general.architecture", "granitehybrid"), unsupported, `needs layers with a recurrent state`},
		"Ling": {llama().set("general.architecture", "bailingmoe2"),
			unsupported, `architecture "bailingmoe2" lacks a comparison with another implementation here: want one of`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.model.parse(t)
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestGemma4HasExpertsIfTheFileSaysHowMany(t *testing.T) {
	for _, key := range []string{"expert_used_count", "expert_feed_forward_length"} {
		_, err := describe(t, "gemma4", key, uint32(128))
		require.ErrorIs(t, err, arch.ErrUnsupportedArch)
		require.ErrorContains(t, err, fmt.Sprintf("mixture of experts (metadata gemma4.%s is 128)", key))
	}
	d, err := describe(t, "gemma4", "expert_count", uint32(0))
	require.NoError(t, err)
	require.Equal(t, engine.MLPDense, d.Layers[0].MLP.Kind)
	d, err = describe(t, "gemma4-experts", "feed_forward_length", []int32{80, 88, 80, 88, 80, 88})
	require.NoError(t, err)
	for i, l := range d.Layers {
		want := engine.Experts{Count: 12, Used: 3, Renorm: true, Scales: true, SharedWidth: 80 + i%2*8, Apart: true}
		require.Equal(t, engine.MLP{Kind: engine.MLPExperts, Activation: engine.GELUTanh, Width: 20, EndNorm: true, Experts: want}, l.MLP)
	}
	_, err = describe(t, "gemma4-experts", "feed_forward_length", uint32(1<<23))
	require.ErrorIs(t, err, arch.ErrInvalidModel)
	require.ErrorContains(t, err, "experts are 8388608 wide, want at most 4194304")
}

// gptOSSKeys are those of published files of gpt-oss.
func gptOSSKeys(layers, experts uint32) map[string]any {
	return published(layers, 2880, 2880, 64, 8, 64, 131072, 1e-5, map[string]any{
		"attention.sliding_window": uint32(128),
		"expert_count":             experts, "expert_used_count": uint32(4), "expert_feed_forward_length": uint32(2880),
		"rope.freq_base": float32(150000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(32),
		"rope.scaling.original_context_length": uint32(4096),
		"rope.scaling.yarn_beta_fast":          float32(32), "rope.scaling.yarn_beta_slow": float32(1),
	})
}

// TestPublishedMixturesGiveTheirNetworks parses the keys that published files have.
func TestPublishedMixturesGiveTheirNetworks(t *testing.T) {
	const sigmoid = engine.GateSigmoid
	of := func(count, used, width uint32, more map[string]any) map[string]any {
		keys := map[string]any{"expert_count": count, "expert_used_count": used}
		if width != 0 {
			keys["expert_feed_forward_length"] = width
		}
		maps.Copy(keys, more)
		return keys
	}
	for _, tc := range []struct {
		name, architecture string
		keys               map[string]any
		tensors            []string
		layers, dense      int
		width              int
		want               engine.Experts
		attention          func(m engine.Mixer, rope engine.Rope) bool
	}{
		{"Qwen3 30B-A3B", "qwen3moe", published(48, 2048, 6144, 32, 4, 128, 40960, 1e-6, of(128, 8, 768, nil)), nil, 48, 0, 768,
			engine.Experts{Count: 128, Used: 8, Renorm: true}, func(m engine.Mixer, _ engine.Rope) bool { return m.QKNorm }},
		{"Qwen1.5 MoE A2.7B", "qwen2moe", published(24, 2048, 5632, 16, 16, 128, 8192, 1e-6, of(60, 4, 0, nil)), nil, 24, 0, 1408,
			engine.Experts{Count: 60, Used: 4, SharedWidth: 5632, SharedGate: true}, func(m engine.Mixer, _ engine.Rope) bool { return m.QKVBias }},
		{"Qwen2 57B-A14B", "qwen2moe", published(28, 3584, 18944, 28, 4, 128, 32768, 1e-6,
			of(64, 8, 2560, map[string]any{"expert_shared_feed_forward_length": uint32(20480)})), nil, 28, 0, 2560,
			engine.Experts{Count: 64, Used: 8, SharedWidth: 20480, SharedGate: true}, nil},
		{"Mixtral 8x7B", "llama", published(32, 4096, 14336, 32, 8, 128, 32768, 1e-5, of(8, 2, 0, nil)), nil, 32, 0, 14336,
			engine.Experts{Count: 8, Used: 2, Renorm: true}, func(_ engine.Mixer, rope engine.Rope) bool { return rope.Style == engine.RopeNorm }},
		{"OLMoE 1B-7B", "olmoe", published(16, 2048, 1024, 16, 16, 128, 4096, 1e-5, of(64, 8, 0, nil)), nil, 16, 0, 1024,
			engine.Experts{Count: 64, Used: 8}, func(m engine.Mixer, _ engine.Rope) bool { return m.QKRowNorm && !m.NoNorm && !m.EndNorm }},
		{"an OLMoE whose key says that weights have the sum one", "olmoe", published(16, 2048, 1024, 16, 16, 128, 4096, 1e-5,
			of(64, 8, 0, map[string]any{"expert_weights_norm": true})), nil, 16, 0, 1024,
			engine.Experts{Count: 64, Used: 8, Renorm: true}, nil},
		{"Granite 3.0 3B-A800M", "granitemoe", published(32, 1536, 512, 24, 8, 64, 4096, 1e-6, of(40, 8, 0, map[string]any{
			"attention.scale": float32(0.015625), "embedding_scale": float32(12), "residual_scale": float32(0.22),
			"logit_scale": float32(6)})), nil, 32, 0, 512,
			engine.Experts{Count: 40, Used: 8, Renorm: true}, func(m engine.Mixer, _ engine.Rope) bool { return m.Scale == 0.015625 }},
		{"ERNIE 4.5 21B-A3B", "ernie4_5-moe", published(28, 2560, 12288, 20, 4, 128, 131072, 1e-5, of(64, 6, 1536, map[string]any{
			"expert_shared_count": uint32(2), "expert_shared_feed_forward_length": uint32(3072),
			"leading_dense_block_count": uint32(1), "interleave_moe_layer_step": uint32(1)})),
			[]string{"blk.1.exp_probs_b.bias"}, 28, 1, 1536,
			engine.Experts{Count: 64, Used: 6, ChoiceBias: true, Renorm: true, SharedWidth: 3072},
			func(_ engine.Mixer, rope engine.Rope) bool { return rope.Style == engine.RopeNorm }},
		{"ERNIE 4.5 300B-A47B", "ernie4_5-moe", published(54, 8192, 28672, 64, 8, 128, 131072, 1e-5, of(64, 8, 3584, map[string]any{
			"expert_shared_count": uint32(0), "leading_dense_block_count": uint32(3), "interleave_moe_layer_step": uint32(1)})),
			[]string{"blk.3.exp_probs_b.bias"}, 54, 3, 3584, engine.Experts{Count: 64, Used: 8, ChoiceBias: true, Renorm: true}, nil},
		{"GLM-4.5-Air", "glm4moe", published(47, 4096, 10944, 96, 8, 128, 131072, 1e-5, of(128, 8, 1408, map[string]any{
			"expert_shared_count": uint32(1), "leading_dense_block_count": uint32(1), "expert_gating_func": uint32(2),
			"expert_weights_norm": true, "expert_weights_scale": float32(1),
			"expert_group_count": uint32(1), "expert_group_used_count": uint32(1), "nextn_predict_layers": uint32(1),
			"rope.dimension_count": uint32(64)})),
			[]string{"blk.0.attn_q.bias"}, 46, 1, 1408,
			engine.Experts{Count: 128, Used: 8, Gating: sigmoid, ChoiceBias: true, Renorm: true, WeightScale: 1, SharedWidth: 1408},
			func(m engine.Mixer, rope engine.Rope) bool {
				return m.QKVBias && !m.QKNorm && !m.EndNorm && rope.Dims == 64 && rope.Style == engine.RopeNeox
			}},
		{"GLM-4.5", "glm4moe", published(93, 5120, 12288, 96, 8, 128, 131072, 1e-5, of(160, 8, 1536, map[string]any{
			"expert_shared_count": uint32(1), "leading_dense_block_count": uint32(3), "expert_gating_func": uint32(2),
			"expert_weights_norm": true, "expert_weights_scale": float32(2.5),
			"nextn_predict_layers": uint32(1), "rope.dimension_count": uint32(64)})),
			[]string{"blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"}, 92, 3, 1536,
			engine.Experts{Count: 160, Used: 8, Gating: sigmoid, ChoiceBias: true, Renorm: true, WeightScale: 2.5, SharedWidth: 1536},
			func(m engine.Mixer, _ engine.Rope) bool { return m.QKNorm }},
		{"MiniMax-M2", "minimax-m2", published(62, 3072, 1536, 48, 8, 128, 196608, 1e-6, of(256, 8, 1536, map[string]any{
			"expert_gating_func": uint32(2), "rope.dimension_count": uint32(64), "rope.freq_base": float32(5e6)})), nil, 62, 0, 1536,
			engine.Experts{Count: 256, Used: 8, Gating: sigmoid, ChoiceBias: true, Renorm: true},
			func(m engine.Mixer, rope engine.Rope) bool { return m.QKRowNorm && rope.Dims == 64 && m.KeyDim == 128 }},
		{"dots.llm1", "dots1", published(62, 4096, 10944, 32, 32, 128, 32768, 1e-5, of(128, 6, 1408, map[string]any{
			"expert_shared_count": uint32(2), "leading_dense_block_count": uint32(1), "expert_gating_func": uint32(2),
			"expert_weights_norm": true, "expert_weights_scale": float32(2.5),
			"expert_group_count": uint32(1), "expert_group_used_count": uint32(1), "rope.freq_base": float32(1e7)})),
			[]string{"blk.1.exp_probs_b.bias"}, 62, 1, 1408,
			engine.Experts{Count: 128, Used: 6, Gating: sigmoid, ChoiceBias: true, Renorm: true, WeightScale: 2.5, SharedWidth: 2816},
			func(m engine.Mixer, _ engine.Rope) bool { return m.QKNorm }},
		{"gpt-oss-20b", "gpt-oss", gptOSSKeys(24, 32), []string{"blk.0.attn_q.bias", "blk.0.attn_output.bias"}, 24, 0, 2880,
			engine.Experts{Count: 32, Used: 4, Renorm: true, RouterBias: true, Bias: true},
			func(m engine.Mixer, _ engine.Rope) bool {
				return m.Sinks && m.QKVBias && m.OutBias && m.Heads == 64 && m.Window == 128
			}},
		{"gpt-oss-120b", "gpt-oss", gptOSSKeys(36, 128), []string{"blk.0.attn_q.bias", "blk.0.attn_output.bias"}, 36, 0, 2880,
			engine.Experts{Count: 128, Used: 4, Renorm: true, RouterBias: true, Bias: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			layout, err := arch.Describe(header(t, tc.architecture, tc.keys, append(tc.tensors, "output.weight"), nil), tc.architecture)
			require.NoError(t, err)
			d := layout.Desc
			require.Len(t, d.Layers, tc.layers)
			for i, l := range d.Layers {
				if i < tc.dense {
					require.Equal(t, engine.MLP{Kind: engine.MLPDense, Width: int(tc.keys["feed_forward_length"].(uint32))}, l.MLP, "layer %d", i)
				} else {
					activation := map[string]engine.Activation{"gpt-oss": engine.ClampedSwish}[tc.architecture]
					require.Equal(t, engine.MLP{Kind: engine.MLPExperts, Activation: activation, Width: tc.width, Experts: tc.want}, l.MLP, "layer %d", i)
				}
			}
			require.True(t, tc.attention == nil || tc.attention(d.Layers[0].Mixer, d.Ropes[0]))
		})
	}
}
