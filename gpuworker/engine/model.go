package engine

import "slices"

// Type is a ggml tensor type id.
type Type uint32

// Weight types an engine may run. Norms and biases are F32.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	BF16   Type = 30
	MXFP4  Type = 39
	NVFP4  Type = 40
	F8     Type = 256 // E4M3 with a scale for each head of each token; for the KV cache only, and not a ggml type
)

// RopeStyle selects the pairs of dims of a head that rotate together.
type RopeStyle int32

// Rope styles.
const (
	RopeNorm RopeStyle = 0 // (2i, 2i+1)
	RopeNeox RopeStyle = 1 // (i, i + dims/2)
)

// MaxContext is the longest context of any model, in tokens. Engines compute rotation angles
// exactly up to it.
const MaxContext = 1 << 21

// ModelDesc describes a decoder as data: an embedding, a list of layers, a norm and a head. Engines
// compute the description and do not depend on an architecture. The zero value of a number, except of the sizes,
// means that the operation is absent.
type ModelDesc struct {
	Hidden, Vocab  int
	Context        int     // largest position + 1
	NormEps        float32 // added to the mean square of every norm
	EmbeddingScale float32 // multiplies the embedding; 0 = 1
	ResidualScale  float32 // multiplies the output of every branch before it is added; 0 = 1
	LogitScale     float32 // multiplies the logits; 0 = 1
	LogitCap       float32 // logits become cap * tanh(logit / cap), after the scale; 0 = no cap
	TiedHead       bool    // the head is the embedding matrix
	// LayerInputWidth is the width of an input that each layer has of each token, besides the residual
	// stream; 0 = none. With w this width, e the token's row of RoleLayerInputEmbedding and p the
	// product of RoleLayerInputProjection and the embedding that enters layer 0, layer i reads
	//
	//	input = (norm(p[i*w:] / sqrt(Hidden)) + sqrt(w)*e[i*w:]) / sqrt(2)
	//
	// and adds, after its MLP, a third branch: norm(down(activation(gate(x)) * input)), with the MLP's
	// activation.
	LayerInputWidth int
	Ropes           []Rope // that mixers refer to by index
	Layers          []Layer
}

// Rope is a rotation of the leading dims of a head by its position. Frequency i is
// Base^(-2i/Dims) / (Scale * Divisors[i]).
type Rope struct {
	Dims      int // rotated leading dims of a head; even
	Style     RopeStyle
	Base      float32   // theta
	Scale     float32   // positions are divided by it; 1 = none
	Magnitude float32   // multiplies cosines and sines; 0 = 1
	Divisors  []float64 // Dims/2 of them, above 0; nil = ones. +Inf leaves a pair in place
}

// Layer is one mixer and one MLP. Each is a branch that reads the residual stream and is added to
// it.
type Layer struct {
	Mixer       Mixer
	MLP         MLP
	OutputScale bool // RoleLayerScale: one number that multiplies the residual stream after the layer
}

// MixerKind is a way to mix positions.
type MixerKind int32

// Kinds of mixers. Engines refuse those that they cannot compute with ErrUnsupported.
const (
	MixAttention MixerKind = 1
	MixLatent    MixerKind = 2 // attention over a latent that all heads share, see Mixer
	MixDelta     MixerKind = 3 // gated delta rule, see Mixer
	MixConv      MixerKind = 4 // short convolution, see Mixer
)

// NoRope is the Mixer.Rope of a layer that does not encode positions.
const NoRope = -1

// Mixer is attention over the positions of a sequence, or a layer that carries a state from
// position to position. The order of operations of attention is: norm, Q, K and V with their
// biases, norms of Q and K, rotation, temperature, cache, scores times Scale, cap, window, softmax,
// values, gate, O with its bias, end norm.
//
// MixDelta is the gated delta rule. It has Heads and ValueDim of values, KVHeads and KeyDim of
// queries and keys, Conv, Scale, TiledHeads, NoNorm and EndNorm; Rope is NoRope. With x the normed
// residual stream, for each token
//
//	c = in(x): queries, keys, values; u = silu(convolution of c and the tokens before)
//	q = Scale*u_q/|u_q|, k = u_k/|u_k|, |u| = sqrt(sum u^2 + 1e-6) of a head, v = u_v
//	g = exp(A*softplus(alpha(x) + dt)), b = sigmoid(beta(x)) of a value head
//	S = g*S; S += k (b*(v - k^T S))^T; o = q^T S
//	out(norm(o)*silu(gate(x))), with the norm by head
//
// MixConv is a short convolution. It has Conv, NoNorm and EndNorm; Rope is NoRope. With B, C and X
// the three parts of in(x), it is out(C * convolution of B*X and the tokens before).
//
// MixLatent is attention over a latent that all heads share. It has Heads, KeyDim, ValueDim, Rope,
// Scale, Latent, QueryLatent, NoNorm and EndNorm; KVHeads is 1. A head of the queries q, which are
// qUp(norm(qDown(x))), or q(x) if QueryLatent is 0, has the parts n, which is not rotated, and r,
// as wide as the rotation. kvDown(x) has the parts c, Latent wide, and k. The cache has one head
// of each position: norm(c), which is also the value, and rope(k).
//
//	score = Scale*(kUp_h(n) . norm(c) + rope(r) . rope(k))
//	o(vUp_h(sum of weights times norm(c)))
type Mixer struct {
	Kind             MixerKind
	Heads, KVHeads   int
	KeyDim, ValueDim int     // of a head
	Rope             int     // index into ModelDesc.Ropes, or NoRope
	Window           int     // position p sees positions max(0, p-Window+1) to p; 0 = all. See Bidirectional
	Scale            float32 // of scores; 0 = 1/sqrt(KeyDim)
	ScoreCap         float32 // scores become cap * tanh(score / cap), after the scale; 0 = no cap
	// Attention temperature: Q of position p is multiplied by 1 + TemperatureScale * ln(1 +
	// floor(p / TemperatureLength)). Both 0 = none.
	TemperatureScale  float32
	TemperatureLength int // positions
	KVLayer           int // keys and values are those of the layer that is KVLayer layers below; 0 = its own
	QKVBias, OutBias  bool
	QKNorm            bool // RMS norm over each head of Q and of K, before the rotation
	QKRowNorm         bool // RMS norm over all heads of Q and of K together, before the rotation
	VNorm             bool // RMS norm without weights over each head of V
	ValueIsKey        bool // V is K, with its bias, before its norm and rotation; there is no RoleV
	// Sinks gives each head one more score, a weight of the model, whose value is nothing: RoleSinks. It takes part in the
	// softmax after scale, cap and window.
	Sinks bool
	// OutGate gives each head a gate, as wide as the head and next to it in Q. Attention's output
	// is multiplied by sigmoid(gate).
	OutGate     bool
	Latent      int  // width of the latent of MixLatent
	QueryLatent int  // of MixLatent: width of the latent of Q; 0 = Q reads the input of the layer
	Conv        int  // taps of the convolution of MixDelta and MixConv, the last of which is of the token itself
	TiledHeads  bool // of MixDelta: value head j has key head j % KVHeads, else j / (Heads/KVHeads)
	NoNorm      bool // no norm before the branch
	EndNorm     bool // RMS norm of the branch before it is added
	// Bidirectional: a position sees later positions of its segment too; with a window, those up to
	// p+Window-1. See ModelDesc.WholeTexts.
	Bidirectional bool
}

// KeepsKeys reports whether the layer has keys in the KV cache, its own or those of another layer.
func (m *Mixer) KeepsKeys() bool { return m.Kind == MixAttention || m.Kind == MixLatent }

// Rotated is the number of dims of a head that the rotation of the layer turns.
func (d *ModelDesc) Rotated(m *Mixer) int {
	if m.Rope < 0 || m.Rope >= len(d.Ropes) {
		return 0
	}
	return d.Ropes[m.Rope].Dims
}

// WholeTexts reports whether a layer sees later positions. A segment is then a whole text: it begins
// at position 0, and no other segment of its step has its slot. Tokens cannot be generated, because
// each would change the states of all positions before it.
func (d *ModelDesc) WholeTexts() bool {
	return slices.ContainsFunc(d.Layers, func(l Layer) bool { return l.Mixer.Bidirectional })
}

// InWindowGroup reports whether a layer is in the window group: attention whose window, and that of
// all layers that read its keys, is shorter than the context. A layer that reads the keys of
// another is in the group of that one. The group is empty if a layer sees later positions.
func (d *ModelDesc) InWindowGroup(layer int) bool {
	own := layer - d.Layers[layer].Mixer.KVLayer
	if d.Layers[own].Mixer.Kind != MixAttention || d.WholeTexts() {
		return false
	}
	for i := own; i < len(d.Layers); i++ {
		m := &d.Layers[i].Mixer
		if i-m.KVLayer == own && (m.Window == 0 || m.Window >= d.Context) {
			return false
		}
	}
	return true
}

// GroupWindow is the largest window of the layers that read keys of the window group; 0: no layer
// is in it.
func (d *ModelDesc) GroupWindow() int {
	window := 0
	for i := range d.Layers {
		if d.InWindowGroup(i) {
			window = max(window, d.Layers[i].Mixer.Window)
		}
	}
	return window
}

// FirstWindowBlock is the first block of blockSize positions that holds one which `position` sees
// through a window.
func FirstWindowBlock(position, window, blockSize int) int {
	return max(0, position+1-window) / blockSize
}

// Channels is the width of the convolution of a layer that carries a state.
func (m *Mixer) Channels(hidden int) int {
	if m.Kind == MixConv {
		return hidden
	}
	return 2*m.KVHeads*m.KeyDim + m.Heads*m.ValueDim
}

// StateFloats returns the numbers of a sequence's state over all layers that carry one: the last
// inputs of the convolution, and S. 0: no layer does.
func (d *ModelDesc) StateFloats() int {
	n := 0
	for i := range d.Layers {
		switch m := &d.Layers[i].Mixer; m.Kind {
		case MixDelta:
			n += (m.Conv-1)*m.Channels(d.Hidden) + m.Heads*m.KeyDim*m.ValueDim
		case MixConv:
			n += (m.Conv - 1) * m.Channels(d.Hidden)
		case MixAttention, MixLatent:
		}
	}
	return n
}

// MLPKind is a kind of feed-forward branch.
type MLPKind int32

// Kinds of MLPs. Engines refuse those that they cannot compute with ErrUnsupported.
const (
	MLPDense   MLPKind = 1
	MLPExperts MLPKind = 2
)

// Activation is the function of an MLP's gate.
type Activation int32

// Activations.
const (
	SiLU     Activation = 0 // x / (1 + exp(-x))
	GELUTanh Activation = 1 // x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
	// ClampedSwish is y / (1 + exp(-1.702 y)) of y = min(x, 7). It multiplies 1 + max(-7, min(up, 7)).
	ClampedSwish Activation = 2
)

// MLP is down(activation(gate(x)) * up(x)) of the normed residual stream x, or a mixture of such experts.
type MLP struct {
	Kind       MLPKind
	Activation Activation
	Width      int  // of the dense MLP, or of one expert
	NoNorm     bool // no norm before the branch
	EndNorm    bool // RMS norm of the branch before it is added
	Experts    Experts
}

// Gating makes the weights of experts from the router's logits.
type Gating int32

// Gatings.
const (
	GateSoftmax Gating = 0 // over all experts
	GateSigmoid Gating = 1
)

// Experts is a mixture of experts of MLPExperts; the zero value has no experts. Expert e has logit r_e =
// router(x)_e and weight p_e, the gating of it. The choice goes by c_e = p_e + choice bias: the Used experts of
// the greatest c, of equal ones those of the lowest id. With groups, which are Count/Groups neighbouring
// experts, only experts of the GroupsUsed best groups take part. The branch is the sum, by ascending id, of the weights
// times what the chosen experts return, and then what the shared expert returns.
//
// A row with a logit that is not a number has no meaning: all of the branch is NaN.
type Experts struct {
	Count, Used int
	Gating      Gating
	// Groups of experts; 0 = none. The score of a group is its greatest c, or the sum of its two greatest.
	Groups, GroupsUsed int
	GroupBestTwo       bool
	RouterBias         bool    // RoleRouterBias, added to the logits
	ChoiceBias         bool    // RoleChoiceBias
	Bias               bool    // gate, up and down of the chosen experts have biases
	Scales             bool    // RoleExpertScale multiplies the weight of each chosen expert, at last
	Renorm             bool    // the weights of the chosen are divided by their sum, which is at least 1e-20
	WeightScale        float32 // multiplies the weights after that; 0 = 1
	// SharedWidth is the width of the shared expert, which every token uses; 0 = no such expert.
	SharedWidth int
	SharedGate  bool // the shared expert is multiplied by sigmoid(RoleSharedRouter . x)
	// Apart gives the router, the chosen experts and the shared expert norms of their own, of the residual
	// stream: RoleRouterNorm, after which the router's input is divided by sqrt(Hidden), RoleExpertNorm and RoleFFNNorm.
	// The sum of the experts and the shared expert have RoleExpertEndNorm and RoleSharedEndNorm before they are added.
	Apart bool
}

// TensorDesc describes one tensor to bind. Layer is -1 outside the layers.
type TensorDesc struct {
	Role  Role
	Layer int
	Type  Type
	Dims  []int64 // 1 to 3 entries, ne[0] first
}

// Model holds the weights of one model. Digest and NewRunner may be called from any goroutine once
// sealed.
type Model interface {
	// Bind consumes the uploaded buffer, even if it fails, and repacks it. Tensors get indexes 0,
	// 1, ... in order.
	Bind(TensorDesc, Buffer) error
	// Seal checks that the model is complete. ErrPrecondition names the missing tensor.
	Seal() error
	// Digest returns BLAKE3 of the tensor's file bytes, computed from the resident bytes.
	Digest(tensor int) (Digest, error)
	// RunnerCost returns the cost of a runner. Before Seal it is an upper bound.
	RunnerCost(RunnerConfig) (RunnerCost, error)
	NewRunner(RunnerConfig) (Runner, error)
	// Close returns ErrPrecondition while runners live.
	Close() error
}

// BitFlipper is the ability of a model to inject a flipped bit.
type BitFlipper interface {
	// FlipBit flips one bit of a tensor's resident bytes.
	FlipBit(tensor int, bit uint64) error
}
