package engine

import "time"

// RunnerConfig sizes a runner.
type RunnerConfig struct {
	KVBlocks         int // blocks in the pool: ids 0 .. KVBlocks-1
	BlockSize        int // tokens a block: 16 or 32
	MaxSequences     int // slots 0 .. MaxSequences-1
	MaxBatchedTokens int // tokens a step
	MaxSampleRows    int
	MaxScoreRows     int
	MaxTopN          int  // 0 .. 64
	KVType           Type // F32, F16 or BF16
}

// RunnerCost is the device memory a runner takes.
type RunnerCost struct {
	KVBytes, WorkspaceBytes, BytesPerBlock uint64
}

// Runner owns the KV cache and slots of one model and runs steps. One goroutine uses it, Progress excepted.
type Runner interface {
	// Submit starts a step and returns; at most two are in flight. Any error but ErrDevice is a refusal that changes nothing:
	// ErrInvalid by the rules, ErrPrecondition where the driver did not take the step, which may be submitted again.
	Submit(*Step) error
	// Wait returns the oldest step in flight; any error but ErrDevice leaves it in flight, to be waited for again. The result
	// is valid until the next Wait.
	Wait(timeout time.Duration) (*StepResult, error)
	// Progress may be called from any goroutine, also while a step hangs.
	Progress() Progress
	Close() error
}

// Progress is how far a runner has come.
type Progress struct {
	Submitted, Completed uint64        // steps
	Running              time.Duration // age of the step on the device; 0 = none
}

// KernelClass says which kernels compute a segment: prompts Prefill, generated tokens Decode.
type KernelClass int32

// Kernel classes.
const (
	Prefill KernelClass = 0
	Decode  KernelClass = 1
)

// PreviousSample stands for the token that the slot sampled in the step before.
const PreviousSample int32 = -1

// Segment is a run of consecutive positions of one slot.
type Segment struct {
	Slot           int32
	SlotGeneration uint32
	Class          KernelClass
	FirstPosition  int32   // at most the slot's length; a longer history is dropped first
	Tokens         []int32 // ids; PreviousSample only as the single token of a Decode segment
	Blocks         []int32 // block table covering positions 0 .. FirstPosition+len(Tokens)-1
}

// SampleRow samples one token for a slot from the logits of one token of the step.
type SampleRow struct {
	TokenIndex     int32 // into the concatenated tokens of the step's segments
	Slot           int32
	SlotGeneration uint32
	Position       int32    // absolute position of the token to be sampled
	Mask           []uint32 // allowed-token bitmask of ceil(vocab/32) words; nil = all
}

// ScoreRow scores a given next token against the logits of one token of the step.
type ScoreRow struct {
	TokenIndex int32
	Target     int32
	TopN       int32
}

// SlotParams are the sampling parameters and the identity of a slot. Order of application: mask, allowed, suppressed,
// bias, penalties, temperature, top-k, typical-p, top-p, min-p, draw.
type SlotParams struct {
	Seed              uint64
	OutputIndex       int32
	PromptLength      int32
	MinTokens         int32
	TopN              int32
	Temperature       float32 // 0 = greedy; the lowest id wins ties
	TopK              int32   // 0 = all
	TopP              float32 // 1 = off
	MinP              float32 // 0 = off
	TypicalP          float32 // 1 = off
	RepetitionPenalty float32 // > 0; 1 = off
	PresencePenalty   float32
	FrequencyPenalty  float32
	PenaltyWindow     int32 // tokens; 0 = none, -1 = the whole history
	BiasIDs           []int32
	BiasValues        []float32
	Allowed           []int32 // nil = every token
	Suppressed        []int32 // forbidden while fewer than MinTokens are generated
}

// PreOp is done before the step's segments: SlotSet (Params not nil) or a block copy.
type PreOp struct {
	Slot           int32
	SlotGeneration uint32
	Params         *SlotParams
	Src, Dst       int32 // block copy when Params is nil
}

// Step is one forward pass over a batch.
type Step struct {
	PreOps   []PreOp
	Segments []Segment
	Samples  []SampleRow
	Scores   []ScoreRow
}

// RowStatus says what became of a row.
type RowStatus int32

// Row statuses.
const (
	RowOK    RowStatus = 0
	RowNaN   RowStatus = 1 // the logits held NaN
	RowEmpty RowStatus = 2 // no token was left to choose from
)

// Candidate is a likely token.
type Candidate struct {
	Token   int32
	Logprob float32
}

// RowResult is the outcome of a sample or score row. Logprobs are of the raw logits.
type RowResult struct {
	Slot, Position int32 // of a sample row; -1 for a score row
	Status         RowStatus
	Token          int32
	Logprob        float32
	Rank           int32 // 1 = best
	Candidates     []Candidate
}

// StepResult has one row a SampleRow and one a ScoreRow, in their order.
type StepResult struct {
	Samples, Scores []RowResult
	DeviceTime      time.Duration
	BytesRead       uint64 // weight and KV bytes the step had to read
}

// Fault is something a test asks of a runner.
type Fault int32

// Runner faults.
const (
	FaultHangStep  Fault = 1 // the next step lasts value ns longer
	FaultNaNLogits Fault = 2 // the logits of sample row index of the next step are NaN
)

// Faulter is the ability to misbehave on request.
type Faulter interface {
	Fault(f Fault, index int32, value uint64) error
}
