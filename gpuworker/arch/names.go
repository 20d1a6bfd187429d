package arch

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// fileNames are the names of the tensors of each role in model files; TensorName completes them.
var fileNames = [engine.RoleCount]string{
	engine.RoleEmbedding:   embeddingName,
	engine.RoleOutputNorm:  "output_norm.weight",
	engine.RoleOutput:      headName,
	engine.RoleAttnNorm:    "attn_norm.weight",
	engine.RoleQ:           "attn_q.weight",
	engine.RoleK:           "attn_k.weight",
	engine.RoleV:           "attn_v.weight",
	engine.RoleQBias:       "attn_q.bias",
	engine.RoleKBias:       "attn_k.bias",
	engine.RoleVBias:       "attn_v.bias",
	engine.RoleQNorm:       "attn_q_norm.weight",
	engine.RoleKNorm:       "attn_k_norm.weight",
	engine.RoleO:           "attn_output.weight",
	engine.RoleOBias:       "attn_output.bias",
	engine.RoleAttnEndNorm: "post_attention_norm.weight",
	engine.RoleFFNNorm:     "ffn_norm.weight",
	engine.RoleGate:        "ffn_gate.weight",
	engine.RoleUp:          "ffn_up.weight",
	engine.RoleDown:        "ffn_down.weight",
	engine.RoleFFNEndNorm:  "post_ffw_norm.weight",
	engine.RoleLayerScale:  "layer_output_scale.weight",

	engine.RoleLayerInputEmbedding:  "per_layer_token_embd.weight",
	engine.RoleLayerInputProjection: "per_layer_model_proj.weight",
	engine.RoleLayerInputNorm:       "per_layer_proj_norm.weight",
	engine.RoleLayerInputGate:       "inp_gate.weight",
	engine.RoleLayerInputDown:       "proj.weight",
	engine.RoleLayerInputEndNorm:    "post_norm.weight",

	engine.RoleRouter:       "ffn_gate_inp.weight",
	engine.RoleChoiceBias:   "exp_probs_b.bias",
	engine.RoleExpertGate:   "ffn_gate_exps.weight",
	engine.RoleExpertUp:     "ffn_up_exps.weight",
	engine.RoleExpertDown:   "ffn_down_exps.weight",
	engine.RoleSharedRouter: "ffn_gate_inp_shexp.weight",
	engine.RoleSharedGate:   "ffn_gate_shexp.weight",
	engine.RoleSharedUp:     "ffn_up_shexp.weight",
	engine.RoleSharedDown:   "ffn_down_shexp.weight",

	engine.RoleSinks:          "attn_sinks.weight",
	engine.RoleRouterBias:     "ffn_gate_inp.bias",
	engine.RoleExpertGateBias: "ffn_gate_exps.bias",
	engine.RoleExpertUpBias:   "ffn_up_exps.bias",
	engine.RoleExpertDownBias: "ffn_down_exps.bias",

	engine.RoleRouterNorm:    "ffn_gate_inp.scale",
	engine.RoleExpertNorm:    "pre_ffw_norm_2.weight",
	engine.RoleExpertEndNorm: "post_ffw_norm_2.weight",
	engine.RoleSharedEndNorm: "post_ffw_norm_1.weight",
	engine.RoleExpertScale:   "ffn_down_exps.scale",

	engine.RoleMixIn:      "attn_qkv.weight",
	engine.RoleMixConv:    "ssm_conv1d.weight",
	engine.RoleMixOut:     "ssm_out.weight",
	engine.RoleMixGate:    "attn_gate.weight",
	engine.RoleDeltaBeta:  "ssm_beta.weight",
	engine.RoleDeltaAlpha: "ssm_alpha.weight",
	engine.RoleDeltaDT:    "ssm_dt.bias",
	engine.RoleDeltaA:     "ssm_a",
	engine.RoleDeltaNorm:  "ssm_norm.weight",

	engine.RoleQDown:        "attn_q_a.weight",
	engine.RoleQLatentNorm:  "attn_q_a_norm.weight",
	engine.RoleQUp:          "attn_q_b.weight",
	engine.RoleKVDown:       "attn_kv_a_mqa.weight",
	engine.RoleKVLatentNorm: "attn_kv_a_norm.weight",
	engine.RoleKUp:          "attn_k_b.weight",
	engine.RoleVUp:          "attn_v_b.weight",
}

// TensorName is the name of a tensor in model files. layer is ignored for roles outside the layers.
func TensorName(role engine.Role, layer int) string {
	if role.InLayer() {
		return fmt.Sprintf("blk.%d.%s", layer, fileNames[role])
	}
	return fileNames[role]
}

// roleOf returns the role of tensors of this name, which is without its layer.
func roleOf(name string) (engine.Role, bool) {
	role := slices.Index(fileNames[:], name)
	return engine.Role(role), role >= 0
}
