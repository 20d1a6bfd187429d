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
	KVType           Type // F32, F16, BF16 or F8
	ActType          Type // what activations are kept as between kernels: F16 or BF16; 0 = the engine's own for the model
	HostBlocks       int  // blocks of host memory: ids 0 .. HostBlocks-1; their memory is taken when they are first written
}

// RunnerCost is the device memory a runner takes.
type RunnerCost struct {
	KVBytes, WorkspaceBytes, BytesPerBlock uint64
	HostBytesPerBlock                      uint64 // of host memory, which the device's ledger does not count
	// PrefillGrain: a step whose prefill tokens are a multiple of so many leaves the fewest processors idle; 0: any number is as good.
	PrefillGrain int
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
	// Blocks is the block table covering positions 0 .. FirstPosition+len(Tokens)-1. A block may stand in it several times, and in
	// those of others, as long as no step writes a token to it.
	Blocks []int32
}

// SampleRow samples one token for a slot from the logits of one token of the step. Several rows may name one token, and several
// one slot, at different positions: each sees the history below its own position, and the sample of the last of them is what
// PreviousSample stands for.
type SampleRow struct {
	TokenIndex     int32 // into the concatenated tokens of the step's segments
	Slot           int32
	SlotGeneration uint32
	Position       int32    // absolute position of the token to be sampled
	Mask           []uint32 // allowed-token bitmask of ceil(vocab/32) words; nil = all
	MaskLate       bool     // the mask comes by LateMasker.Masks; Mask is nil
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

// PreOpKind says what a PreOp does.
type PreOpKind int32

// Kinds of pre-operations.
const (
	SlotSet   PreOpKind = 0 // gives a slot parameters and a history
	BlockCopy PreOpKind = 1 // Src to Dst, both on the device
	// BlockOut copies Src on the device to Dst in host memory. ErrOutOfMemory from Submit: the host has none, nothing changed.
	BlockOut PreOpKind = 2
	BlockIn  PreOpKind = 3 // Src in host memory, written by a BlockOut before, to Dst on the device
)

// PreOp is done before the step's segments, in order.
type PreOp struct {
	Kind           PreOpKind
	Slot           int32 // of SlotSet, as are the next three
	SlotGeneration uint32
	Params         *SlotParams
	// History is the ids of positions 0 .. len-1, whose keys and values are in the blocks that the slot's segments name: the
	// caller's word. The slot's length becomes len, so that its first segment may begin there.
	History  []int32
	Src, Dst int32 // of a block
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

// LateMasker is the ability of a runner to take masks after a step was submitted: all but the sampling is done meanwhile.
type LateMasker interface {
	// Masks gives the masks of the rows with MaskLate of the step submitted last, in their order. Before that Wait answers
	// ErrTimeout for that step, and Submit ErrPrecondition. ErrPrecondition: no step waits for masks. ErrInvalid: another number of
	// masks, or one of another length; the step still waits.
	Masks(masks [][]uint32) error
}

// Faulter is the ability to misbehave on request.
type Faulter interface {
	Fault(f Fault, index int32, value uint64) error
}
