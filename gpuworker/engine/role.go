package engine

import "fmt"

// Role says what a tensor is to the model. What is known of a role stands in one table, which file readers, writers, engines in
// Go and the tests of all engines use; the native engines have it once more, held to this one by package enginetest.
type Role int32

// Roles, in the order in which a model is best bound: the outer tensors, then those of each layer. Their numbers are the ABI's.
const (
	RoleEmbedding Role = iota
	RoleOutputNorm
	RoleOutput
	RoleRopeFactors
	RoleAttnNorm
	RoleQ
	RoleK
	RoleV
	RoleQBias
	RoleKBias
	RoleVBias
	RoleQNorm
	RoleKNorm
	RoleO
	RoleOBias
	RoleFFNNorm
	RoleGate
	RoleUp
	RoleDown
	RoleCount
)

// firstInLayer divides the outer roles from those that every layer has.
const firstInLayer = RoleAttnNorm

// roles is the table: what messages call a tensor, its dims (in, out), ggml's ne[0], ne[1], and which models have it, nil for all.
// One dim is a vector: a norm, a bias or factors.
var roles = [RoleCount]struct {
	name string
	dims func(ModelDesc) []int64
	of   func(ModelDesc) bool
}{
	RoleEmbedding:   {"embedding", matrix(hidden, vocab), nil},
	RoleOutputNorm:  {"output norm", vector(hidden), nil},
	RoleOutput:      {"output", matrix(hidden, vocab), func(d ModelDesc) bool { return !d.TiedHead }},
	RoleRopeFactors: {"rope factors", vector(frequencies), func(d ModelDesc) bool { return d.RopeFactors }},
	RoleAttnNorm:    {"attention norm", vector(hidden), nil},
	RoleQ:           {"q", matrix(hidden, queries), nil},
	RoleK:           {"k", matrix(hidden, keys), nil},
	RoleV:           {"v", matrix(hidden, keys), nil},
	RoleQBias:       {"q bias", vector(queries), qkvBias},
	RoleKBias:       {"k bias", vector(keys), qkvBias},
	RoleVBias:       {"v bias", vector(keys), qkvBias},
	RoleQNorm:       {"q norm", vector(head), qkNorm},
	RoleKNorm:       {"k norm", vector(head), qkNorm},
	RoleO:           {"o", matrix(queries, hidden), nil},
	RoleOBias:       {"o bias", vector(hidden), func(d ModelDesc) bool { return d.OBias }},
	RoleFFNNorm:     {"ffn norm", vector(hidden), nil},
	RoleGate:        {"gate", matrix(hidden, inner), nil},
	RoleUp:          {"up", matrix(hidden, inner), nil},
	RoleDown:        {"down", matrix(inner, hidden), nil},
}

// size is one dim of a tensor.
type size func(ModelDesc) int64

func hidden(d ModelDesc) int64      { return int64(d.Hidden) }
func vocab(d ModelDesc) int64       { return int64(d.Vocab) }
func inner(d ModelDesc) int64       { return int64(d.FFN) }
func head(d ModelDesc) int64        { return int64(d.HeadDim) }
func queries(d ModelDesc) int64     { return int64(d.Heads) * int64(d.HeadDim) }
func keys(d ModelDesc) int64        { return int64(d.KVHeads) * int64(d.HeadDim) }
func frequencies(d ModelDesc) int64 { return int64(d.RopeDims / 2) }

func qkvBias(d ModelDesc) bool { return d.QKVBias }
func qkNorm(d ModelDesc) bool  { return d.QKNorm }

func matrix(in, out size) func(ModelDesc) []int64 {
	return func(d ModelDesc) []int64 { return []int64{in(d), out(d)} }
}

func vector(n size) func(ModelDesc) []int64 {
	return func(d ModelDesc) []int64 { return []int64{n(d)} }
}

// Known says whether there is such a role. The other methods but String are of known roles.
func (r Role) Known() bool { return r >= 0 && r < RoleCount }

// String is what messages call it.
func (r Role) String() string {
	if !r.Known() {
		return fmt.Sprintf("role %d", int32(r))
	}
	return roles[r].name
}

// InLayer says whether every layer has one; else the model has one, and its layer is -1.
func (r Role) InLayer() bool { return r >= firstInLayer }

// Vector says whether it has one dim; then its type is F32.
func (r Role) Vector() bool { return len(r.Dims(ModelDesc{})) == 1 }

// Dims are the tensor's in a model of this shape, ne[0] first.
func (r Role) Dims(d ModelDesc) []int64 { return roles[r].dims(d) }

// Of says whether a model of this shape has such a tensor; then it cannot do without.
func (r Role) Of(d ModelDesc) bool { return roles[r].of == nil || roles[r].of(d) }
