package arch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// fileNames are what model files call the tensors of each role; TensorName completes them.
var fileNames = [engine.RoleCount]string{
	engine.RoleEmbedding:   "token_embd.weight",
	engine.RoleOutputNorm:  "output_norm.weight",
	engine.RoleOutput:      "output.weight",
	engine.RoleRopeFactors: "rope_freqs.weight",
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
	engine.RoleFFNNorm:     "ffn_norm.weight",
	engine.RoleGate:        "ffn_gate.weight",
	engine.RoleUp:          "ffn_up.weight",
	engine.RoleDown:        "ffn_down.weight",
}

// TensorName is what model files call a tensor; layer counts for roles in layers alone.
func TensorName(role engine.Role, layer int) string {
	if role.InLayer() {
		return fmt.Sprintf("blk.%d.%s", layer, fileNames[role])
	}
	return fileNames[role]
}
