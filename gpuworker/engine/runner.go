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
	MaxHiddenRows    int  // 0 unless DeviceInfo.HiddenRows
	MaxTopN          int  // 0 .. 64
	KVType           Type // F32, F16, BF16 or F8
	// ActType is the type of activations between kernels: F16 or BF16; 0 = the engine's choice for
	// the model. Those that quantised matrices read are F16 on a GPU, whatever is requested.
	ActType    Type
	HostBlocks int // blocks of host memory: ids 0 .. HostBlocks-1; each is allocated when it is first written
	// SavedStates and HostStates are for models whose layers carry states (ModelDesc.StateFloats),
	// else 0. Each slot has a state of its own, besides saved states 1 .. SavedStates. Host memory
	// has states 0 .. HostStates-1.
	SavedStates, HostStates int
	// WindowBlocks are blocks in the pool of the window group (ModelDesc.GroupWindow): ids 0 ..
	// WindowBlocks-1. 0 = all layers are in the first pool. HostWindowBlocks are its blocks of host
	// memory.
	WindowBlocks, HostWindowBlocks int
}

// RunnerCost is the device memory that a runner allocates.
type RunnerCost struct {
	KVBytes, WorkspaceBytes, BytesPerBlock uint64
	HostBytesPerBlock                      uint64 // of host memory, which the device's ledger does not count
	// PrefillGrain: a step whose prefill tokens are a multiple of it leaves the fewest processors
	// idle. 0: any number is as good.
	PrefillGrain int
	// BytesPerState is 0 if no layer carries a state. KVBytes has one for each slot and saved
	// state.
	BytesPerState, HostBytesPerState uint64
	// BytesPerWindowBlock is 0 without a window group. KVBytes has WindowBlocks+1 of them: one
	// block holds zeros. BytesPerBlock is then 0 if all layers are in the window group.
	BytesPerWindowBlock, HostBytesPerWindowBlock uint64
}

// Runner owns the KV cache and slots of one model and runs steps. One goroutine must make all
// calls, except Progress.
type Runner interface {
	// Submit starts a step and returns. At most two are in flight. Every error except ErrDevice is
	// a refusal that changes nothing: ErrInvalid if the step breaks the rules, ErrPrecondition if
	// the driver did not accept it. Such a step may be submitted again.
	Submit(*Step) error
	// Wait returns the result of the oldest step in flight. After an error other than ErrDevice the
	// step is still in flight. The result is valid until the next Wait.
	Wait(timeout time.Duration) (*StepResult, error)
	// Progress may be called from any goroutine, even while a step hangs.
	Progress() Progress
	Close() error
}

// Progress counts the steps of a runner.
type Progress struct {
	Submitted, Completed uint64        // steps
	Running              time.Duration // age of the step on the device; 0 = none
}

// KernelClass selects the kernels that compute a segment: Prefill for prompts, Decode for generated
// tokens.
type KernelClass int32

// Kernel classes.
const (
	Prefill KernelClass = 0
	Decode  KernelClass = 1
)

// PreviousSample is the id of a token that the previous step samples for the same slot.
const PreviousSample int32 = -1

// NoBlock is an entry of a table without a block.
const NoBlock int32 = -1

// Segment is a run of consecutive positions of one slot.
type Segment struct {
	Slot           int32
	SlotGeneration uint32
	Class          KernelClass
	FirstPosition  int32   // at most the slot's length; the history from there on is dropped
	Tokens         []int32 // ids; PreviousSample only as the single token of a Decode segment
	// Blocks is the block table of positions 0 .. FirstPosition+len(Tokens)-1. A block may be in it
	// several times, and in the tables of other slots, unless a step writes a token to it.
	Blocks []int32
	// WindowBlocks is the block table of the window group, entry by entry for the same positions;
	// empty if the runner has none. Entries of blocks with positions below
	// FirstPosition-GroupWindow+1 alone may be NoBlock: they are not read.
	WindowBlocks []int32
	// StateFrom and StateTo are where the slot's states are read before the segment and written
	// after it: 0 for the slot's own, else a saved state. A state remembers up to which position it
	// has read; that of StateFrom must be FirstPosition. A segment at position 0 reads none and
	// begins with zeros. No other slot's segment of the step may name a state that the step writes,
	// and the next segment of the slot must read it.
	StateFrom, StateTo int32
}

// SampleRow samples one token for a slot from the logits of one token of the step. Several rows may
// name the same token. Several rows may name the same slot at different positions: each sees the
// history below its own position, and PreviousSample then means the sample of the last of them.
type SampleRow struct {
	TokenIndex     int32 // into the concatenated tokens of the step's segments
	Slot           int32
	SlotGeneration uint32
	Position       int32    // absolute position of the token to be sampled
	Mask           []uint32 // allowed-token bitmask of ceil(vocab/32) words; nil = all
	MaskLate       bool     // LateMasker.Masks brings the mask; Mask is nil
}

// ScoreRow scores a given next token against the logits of one token of the step.
type ScoreRow struct {
	TokenIndex int32
	Target     int32
	TopN       int32
}

// SlotParams are the sampling parameters and the identity of a slot. Order of application: mask,
// allowed, suppressed, bias, penalties, temperature, top-k, typical-p, top-p, min-p, draw.
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

// PreOpKind is the kind of a PreOp.
type PreOpKind int32

// Kinds of pre-operations.
const (
	SlotSet   PreOpKind = 0 // sets the parameters and the history of a slot
	BlockCopy PreOpKind = 1 // Src to Dst, both on the device
	// BlockOut copies Src on the device to Dst in host memory. If the host has no memory, Submit
	// returns ErrOutOfMemory and changes nothing.
	BlockOut PreOpKind = 2
	BlockIn  PreOpKind = 3 // Src in host memory, which an earlier BlockOut wrote, to Dst on the device
	// StateOut copies state Src (0 = the slot's own), which a step wrote, to Dst in host memory, as
	// BlockOut does.
	StateOut PreOpKind = 4
	StateIn  PreOpKind = 5 // Src in host memory, which an earlier StateOut wrote, to state Dst (0 = the slot's own)
)

// PreOp is an operation before the step's segments. A step runs its PreOps in order.
type PreOp struct {
	Kind           PreOpKind
	Slot           int32 // of SlotSet, like the next three fields, and of StateOut and StateIn
	SlotGeneration uint32
	Params         *SlotParams
	// History has the ids of positions 0 .. len-1. The caller guarantees that their keys and values
	// are in the blocks of the slot's segments. The slot's length becomes len, so that its first
	// segment may begin there. The ids that a state has read are the caller's guarantee too.
	History  []int32
	Src, Dst int32 // of a block or a state
	Window   bool  // of Block*: the blocks are those of the window group
}

// Step is one forward pass over a batch.
type Step struct {
	PreOps   []PreOp
	Segments []Segment
	Samples  []SampleRow
	Scores   []ScoreRow
	// Hidden has indexes into the concatenated tokens of the step's segments. Of each, the hidden
	// state after the last layer and the output norm is wanted, which the head would multiply.
	Hidden []int32
}

// RowStatus is the status of a sample or score row.
type RowStatus int32

// Row statuses.
const (
	RowOK    RowStatus = 0
	RowNaN   RowStatus = 1 // the logits have a NaN
	RowEmpty RowStatus = 2 // every token is excluded
)

// Candidate is a likely token.
type Candidate struct {
	Token   int32
	Logprob float32
}

// RowResult is the result of a sample or score row. Logprobs are of the raw logits.
type RowResult struct {
	Slot, Position int32 // of a sample row; -1 for a score row
	Status         RowStatus
	Token          int32
	Logprob        float32
	Rank           int32 // 1 = best
	Candidates     []Candidate
}

// StepResult has one row for each SampleRow and one for each ScoreRow, in their order.
type StepResult struct {
	Samples, Scores []RowResult
	// Hidden has ModelDesc.Hidden numbers for each entry of Step.Hidden, in their order. Like the
	// logits of a token, they depend on the tokens of its sequence up to it alone.
	Hidden     []float32
	DeviceTime time.Duration
	BytesRead  uint64 // bytes of weights, KV blocks and states the step had to read
}

// Fault is a fault that a test injects into a runner.
type Fault int32

// Runner faults.
const (
	FaultHangStep  Fault = 1 // the next step lasts value ns longer
	FaultNaNLogits Fault = 2 // the logits of sample row index of the next step are NaN
)

// LateMasker is the ability of a runner to receive masks after a step was submitted. Until they
// arrive it does everything except the sampling.
type LateMasker interface {
	// Masks sets the masks of the rows with MaskLate of the step that was submitted last, in their
	// order. Until then Wait returns ErrTimeout for that step, and Submit ErrPrecondition. Masks
	// returns ErrPrecondition if no step waits for masks, and ErrInvalid if their number or a
	// length is wrong; the step then still waits.
	Masks(masks [][]uint32) error
}

// Faulter is the ability of a runner to inject faults.
type Faulter interface {
	Fault(f Fault, index int32, value uint64) error
}
