package engine

import "time"

// Op is one plain operation. MR_OP_* in engine.h has the shapes and formulas.
type Op int32

// Plain operations.
const (
	OpMatmul Op = iota
	OpMatvec
	OpSoftmax
	OpRMSNorm
	OpAdd
	OpMul
	OpScale
	OpSiLU
	OpSwiGLU
	OpCopy
	OpRope
	OpAttention
	OpMatmulF16
	OpMatvecF16
	OpCount
)

// OpArgs are the operands of one plain operation: f32, row-major.
type OpArgs struct {
	Op                Op
	AType             Type // F32 except for weights
	Rows, Cols, Inner int64
	Batch             int32
	Heads, KVHeads    int32
	RopeStyle         RopeStyle
	FirstPosition     int32
	Eps, Scale, Base  float32
	A, B, C, Out      Buffer
}

// Operator is the ability to run plain operations. Both native engines have it.
type Operator interface {
	// Run runs the operation and returns the time on the device.
	Run(OpArgs) (time.Duration, error)
}
