package arch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// fusion lists tensors of a layer that hold the rows of several roles, or of one role under another
// name than usual, by the suffix of their names. The rows of the roles follow one another in the
// given order, in a stack in each of its matrices. Engines bind a view for each role, so they do
// not depend on how a file arranges its rows.
type fusion map[string][]engine.Role

// The fused tensors of published files. A file may have a tensor for each of Q, K and V instead, and
// a stack for each of the experts' gate and up. Gate and up of a dense MLP have no such choice,
// because the fused tensor has the name of up.
var (
	fusedQKV = fusion{
		"attn_qkv.weight": {engine.RoleQ, engine.RoleK, engine.RoleV},
		"attn_qkv.bias":   {engine.RoleQBias, engine.RoleKBias, engine.RoleVBias},
	}
	fusedGateUp  = fusion{"ffn_up.weight": {engine.RoleGate, engine.RoleUp}}
	fusedExperts = fusion{"ffn_gate_up_exps.weight": {engine.RoleExpertGate, engine.RoleExpertUp}}
)

// rolesOf returns the roles that a tensor of a layer holds. nil: it has no role.
func (f fusion) rolesOf(suffix string, d *engine.ModelDesc, layer int) []engine.Role {
	roles, ok := f[suffix]
	if !ok {
		role, ok := roleOf(suffix)
		if !ok || !role.InLayer() {
			return nil
		}
		roles = []engine.Role{role}
	}
	for _, role := range roles {
		if !role.Of(d, layer) {
			return nil
		}
	}
	return roles
}

// name returns the name of the tensor that holds a role, as a message calls it.
func (f fusion) name(role engine.Role, layer int) string {
	suffix := f.suffixOf(role)
	switch roles := f[suffix]; len(roles) {
	case 0:
		return TensorName(role, layer)
	case 1:
		return nameIn(suffix, role, layer)
	default:
		return fmt.Sprintf("blk.%d.%s, of the rows of %s,", layer, suffix, listOf(roles))
	}
}

// nameIn returns the name of a tensor from its suffix, which is whole for roles outside the layers.
func nameIn(suffix string, role engine.Role, layer int) string {
	if !role.InLayer() {
		return suffix
	}
	return fmt.Sprintf("blk.%d.%s", layer, suffix)
}

// suffixOf returns the suffix of the tensor that holds a role, "" if files have the usual one.
func (f fusion) suffixOf(role engine.Role) string {
	for suffix, roles := range f {
		if slices.Contains(roles, role) {
			return suffix
		}
	}
	return ""
}

// views divides a tensor among its roles by rows.
func views(t gguf.Tensor, roles []engine.Role, d *engine.ModelDesc, layer int) ([]gguf.Tensor, error) {
	if len(roles) == 1 {
		return []gguf.Tensor{t}, nil
	}
	rows, text := int64(0), make([]string, len(roles))
	whole, at := slices.Clone(roles[0].Dims(d, layer)), RowsDim(roles[0])
	for i, role := range roles {
		n := role.Dims(d, layer)[at]
		rows, text[i] = rows+n, fmt.Sprintf("%d of %v", n, role)
	}
	whole[at] = rows
	if !sameDims(t, whole) {
		return nil, invalid("tensor %s has dimensions %v, want %v: rows %s", t.Name, t.Dims, whole, strings.Join(text, ", "))
	}
	if roles[0] == engine.RoleDeltaBeta {
		return keyHeadViews(t, d.Layers[layer].Mixer.KVHeads)
	}
	var out []gguf.Tensor
	first := uint64(0)
	for _, role := range roles {
		end := first + uint64(role.Dims(d, layer)[at])
		view, err := t.Rows(first, end)
		if err != nil {
			return nil, err
		}
		out, first = append(out, view), end
	}
	return out, nil
}

// keyHeadViews divides a tensor that has the rows of beta and those of alpha of one key head after
// another.
func keyHeadViews(t gguf.Tensor, heads int) (out []gguf.Tensor, err error) {
	n := t.Dims[1] / uint64(heads) / 2 // rows of each of a key head
	stack := t
	stack.Dims = []uint64{t.Dims[0], 2 * n, uint64(heads)}
	for first := uint64(0); first <= n; first += n {
		view, err := stack.Rows(first, first+n)
		if err != nil {
			return nil, err
		}
		view.Dims = []uint64{t.Dims[0], n * uint64(heads)}
		out = append(out, view)
	}
	return out, nil
}

// RowsDim returns which dim of a tensor counts the rows by which tensors are fused: the second of a
// matrix or of a stack of them, and the only one of a vector.
func RowsDim(role engine.Role) int {
	if role.Vector() {
		return 0
	}
	return 1
}

// listOf returns "q, k and v".
func listOf(roles []engine.Role) string {
	text := ""
	for i, role := range roles {
		switch {
		case i == 0:
		case i == len(roles)-1:
			text += " and "
		default:
			text += ", "
		}
		text += role.String()
	}
	return text
}
