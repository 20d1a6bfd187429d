package engine

// Type is a ggml tensor type id.
type Type uint32

// Weight types an engine may run. Norms and biases are F32.
const (
	F32   Type = 0
	F16   Type = 1
	Q4_0  Type = 2
	Q4_1  Type = 3
	Q5_0  Type = 6
	Q5_1  Type = 7
	Q8_0  Type = 8
	Q4_K  Type = 12
	Q5_K  Type = 13
	Q6_K  Type = 14
	IQ4NL Type = 20
	BF16  Type = 30
	F8    Type = 256 // E4M3 with a scale for each head of each token; of the KV cache only, and no ggml type
)

// RopeStyle says which dims of a head rotate together.
type RopeStyle int32

// Rope styles.
const (
	RopeNorm RopeStyle = 0 // (2i, 2i+1)
	RopeNeox RopeStyle = 1 // (i, i + dims/2)
)

// MaxContext is the longest context of any model, in tokens: engines compute rotation angles exactly up to there.
const MaxContext = 1 << 21

// ModelDesc is the shape of a decoder: norm, attention with rope, norm, SwiGLU, by layers.
type ModelDesc struct {
	Layers, Hidden, Heads, KVHeads, HeadDim, FFN, Vocab int
	Context                                             int // largest position + 1
	RopeDims                                            int // rotated leading dims of a head; even
	RopeStyle                                           RopeStyle
	RopeBase                                            float32 // theta
	RopeScale                                           float32 // positions are divided by it; 1 = none
	NormEps                                             float32
	AttnScale                                           float32 // 0 = 1/sqrt(HeadDim)
	QKVBias, OBias, QKNorm, TiedHead                    bool
	RopeFactors                                         bool // frequency i is divided by factor i of RoleRopeFactors
}

// TensorDesc describes one tensor to bind. Layer is -1 outside the layers.
type TensorDesc struct {
	Role  Role
	Layer int
	Type  Type
	Dims  []int64 // 1 or 2 entries, ne[0] first
}

// Model holds the weights of one model. Digest and NewRunner may be called from any goroutine once sealed.
type Model interface {
	// Bind consumes the uploaded buffer, also when it fails, and repacks it. Tensors get indexes 0, 1, ... in order.
	Bind(TensorDesc, Buffer) error
	// Seal checks that the model is whole; ErrPrecondition names what is missing.
	Seal() error
	// Digest is BLAKE3 of the tensor's file bytes, computed from the resident bytes.
	Digest(tensor int) (Digest, error)
	// RunnerCost prices a runner; before Seal it is an upper bound.
	RunnerCost(RunnerConfig) (RunnerCost, error)
	NewRunner(RunnerConfig) (Runner, error)
	// Close fails with ErrPrecondition while runners live.
	Close() error
}

// BitFlipper is a fault a test may ask of a model.
type BitFlipper interface {
	// FlipBit flips one bit of a tensor's resident bytes.
	FlipBit(tensor int, bit uint64) error
}
