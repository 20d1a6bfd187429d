package engine

import "time"

// VectorNumerics is the version of every rule that decides the bits of codebooks: docs/decisions/029-vector-numerics.md.
const VectorNumerics = "vectors-1"

// Element is a type of a vector's elements.
type Element int32

// Elements. Codewords are VectorF32, VectorF16 or VectorBF16.
const (
	VectorF32 Element = iota
	VectorF16
	VectorBF16
	VectorU8
	VectorI8
	ElementCount
)

// Size is the bytes of one element.
func (e Element) Size() int {
	switch e {
	case VectorF32:
		return 4
	case VectorF16, VectorBF16:
		return 2
	default:
		return 1
	}
}

// CodebookKind says what a code names.
type CodebookKind int32

// Kinds of codebooks.
const (
	Flat    CodebookKind = iota // a code is a codeword of the whole row
	Product                     // the row is cut into subspaces, each with codewords and a code of its own
)

// Metric says which codeword is the nearest.
type Metric int32

// Metrics. A product codebook knows L2 alone.
const (
	L2           Metric = iota // the least sum of squared differences
	InnerProduct               // the largest inner product with a codeword of length 1
	Cosine                     // InnerProduct of the row divided by its length
)

// Algorithm says how a round moves codewords.
type Algorithm int32

// Algorithms. Annealed knows L2 alone.
const (
	Lloyd    Algorithm = iota // each to the mean of its rows
	Annealed                  // each some way to the trimmed mean of its rows, less from round to round
)

// Init says where codewords begin.
type Init int32

// Inits. KMeansPlusPlus and Farthest take one step a codeword: at most MaxSequential of them, and not with InnerProduct.
const (
	Random Init = iota
	KMeansPlusPlus
	Farthest
	Given
)

// Bounds of codebooks.
const (
	MaxDimension      = 65536
	MaxCodewords      = 65536
	MaxSequential     = 4096
	MaxNeighbours     = 64
	MaxTrainingRows   = 1<<32 - 1
	MaxCodebookValues = 1<<31 - 1 // codewords * dimension
	MaxIterations     = 1000000
)

// CodebookDesc is the shape of a codebook. Its bytes are (Subspaces, Codewords, Dimension/Subspaces) of Type, little-endian.
type CodebookDesc struct {
	Kind      CodebookKind
	Metric    Metric
	Dimension int     // 1..MaxDimension
	Codewords int     // of each subspace, 1..MaxCodewords
	Subspaces int     // a divisor of Dimension; Flat: 1
	Type      Element // VectorF32, VectorF16 or VectorBF16
}

// Width is the elements of one codeword.
func (d CodebookDesc) Width() int { return d.Dimension / d.Subspaces }

// Bytes are those of all codewords.
func (d CodebookDesc) Bytes() uint64 {
	return uint64(d.Codewords) * uint64(d.Dimension) * uint64(d.Type.Size())
}

// CodeSize is the bytes of one code: a uint8 up to 256 codewords, else a uint16.
func (d CodebookDesc) CodeSize() int {
	if d.Codewords <= 256 {
		return 1
	}
	return 2
}

// Annealing are the parameters of Annealed; each is explained at mr_trainer_config in vectors.h.
type Annealing struct {
	Temperature         float64 // (0, 1]
	CoolingRate         float64 // [0, 1)
	LearningRate        float64 // (0, 1]
	Momentum            float64 // [0, 1)
	Trim                float64 // [0, 0.5]
	StepLimit           float64 // > 0; 0 = none
	MaintenanceInterval int     // updates; 0 = none
	MergeDistance       float64 // > 0; 0 = none
	SplitLoad           float64 // > 1; 0 = none
}

// TrainerConfig is one training. What is computed is docs/decisions/029-vector-numerics.md.
type TrainerConfig struct {
	Codebook        CodebookDesc
	Rows            uint64  // Codewords..MaxTrainingRows
	Element         Element // of the rows
	Algorithm       Algorithm
	Init            Init
	Seed            uint64
	MaxIterations   int     // updates, 0..MaxIterations
	EnergyTolerance float64 // >= 0; -1 = energy does not matter
	MinChanges      int64   // >= 0; -1 = ids do not matter
	StableRounds    int     // >= 1: so many stable rounds in a row end the training
	Annealing       Annealing
	SpoolBytes      uint64 // host memory for rows that device memory does not hold; 0 = none
}

// TrainerCost is what a trainer takes if it is made now; it takes no more later. Rows are spooled only where they do not fit in
// what is free.
type TrainerCost struct {
	DeviceBytes uint64
	SpoolBytes  uint64 // of host memory; 0 = the rows are resident
}

// Vectors is the ability of a device to train, hold and use codebooks. ErrUnsupported: this engine has it not.
type Vectors interface {
	TrainerCost(TrainerConfig) (TrainerCost, error)
	// NewTrainer takes all of a training's memory; ErrOutOfMemory carries bytes asked and free.
	NewTrainer(TrainerConfig) (Trainer, error)
	// NewCodebook copies codewords, which must be finite.
	NewCodebook(desc CodebookDesc, codewords []byte) (Codebook, error)
}

// Slice bounds a piece of a training's work. It ends when either is reached, after one unit of the engine's work at least.
type Slice struct {
	Budget time.Duration // of device time; 0 = no bound
	Rounds int           // >= 1
}

// Round is one assignment of every row, and the update behind it.
type Round struct {
	Iteration     int64   // updates before it
	Energy        float64 // mean distance of the rows from their codewords
	Changes       int64   // ids that differ from the round before; all in round 0
	Temperature   float64 // of its update; 0 for Lloyd
	Empty         int64   // codewords without a row
	Merged, Split int64   // in the maintenance behind its update
	Imbalance     float64 // mean over subspaces of codewords * sum of squared loads / rows^2; 1 = even
}

// Phase says what a training does.
type Phase int32

// Phases.
const (
	Writing Phase = iota
	Seeding
	Assigning
	Updating
	Done
)

// Reason says why a training ended.
type Reason int32

// Reasons.
const (
	Unfinished Reason = iota
	ReachedMaxIterations
	Converged
)

// Training is how far a training is when a slice has ended.
type Training struct {
	Rounds              []Round // those that the slice ended, in order
	Phase               Phase
	Reason              Reason
	RowsDone, RowsTotal uint64 // of the phase
	Computed            uint64 // ids found since the trainer was made
	Recomputed          uint64 // of these, those that needed float64; differs by device and says nothing of bits
	DeviceTime          time.Duration
}

// Trainer holds the rows of one training, its codebook and its workspace. It is used by one goroutine at a time.
type Trainer interface {
	// Write appends rows, whole ones; first is how many were written before. ErrInvalid names the first row that is not finite,
	// and nothing of the chunk is written.
	Write(first uint64, rows []byte) error
	// Give sets the codewords of Init Given, before the first Submit.
	Give(codewords []byte) error
	// Restore sets what State gave of a trainer with the same rows and the same configuration, limits of the end apart, before
	// the first Submit.
	Restore(state []byte) error
	// Submit begins a slice; at most two are in flight. ErrPrecondition: rows or given codewords are missing, or the training is
	// Done. ErrInvalid: codewords cannot hold the rows' largest value.
	Submit(Slice) error
	// Wait returns the oldest slice's end. ErrTimeout: not yet, wait again. ErrPrecondition: none is in flight.
	Wait(timeout time.Duration) (Training, error)
	// Codewords, IDs, Loads and State are of the last round; no slice may be in flight (ErrPrecondition).
	Codewords() ([]byte, error)
	IDs() ([]uint32, error)   // (Rows, Subspaces)
	Loads() ([]uint64, error) // (Subspaces, Codewords)
	// Variances returns, per codeword, (Subspaces, Codewords), the mean distance of its rows: with L2 their variance. A codeword
	// without rows has 0. ErrPrecondition before the training is Done.
	Variances() ([]float64, error)
	State() ([]byte, error) // equal bytes on every engine
	// Close waits for slices in flight, a unit of work each at most, and gives everything back.
	Close() error
}

// Codes are what rows were encoded to.
type Codes struct {
	// Codes are (rows, Subspaces), or (rows, neighbours) nearest first, of CodeSize bytes each, little-endian.
	Codes []byte
	// Distances are one for each code, of a product codebook one for each row; nil where none were asked for.
	Distances []float32
	// Recomputed are the ids that needed float64.
	Recomputed uint64
}

// Encoding is what to encode and how.
type Encoding struct {
	Element    Element
	Rows       []byte // whole rows, finite
	Neighbours int    // Flat: 1..MaxNeighbours, at most Codewords; Product: 1
	Distances  bool
}

// Codebook is a codebook in device memory. Its methods may be called from any goroutine.
type Codebook interface {
	// Encode is pure: equal rows get equal codes, whatever they come with. ErrInvalid names the first row that is not finite.
	Encode(Encoding) (Codes, error)
	// Decode gathers codewords: (rows, Dimension) of Type. ErrInvalid names the first code that is no codeword's.
	Decode(codes []byte) ([]byte, error)
	// Digest is BLAKE3 of the codewords' bytes, computed from the resident ones.
	Digest() (Digest, error)
	Close() error
}

// CodebookBitFlipper is a fault a test may ask of a codebook.
type CodebookBitFlipper interface {
	// FlipBit flips one bit of the codewords' bytes.
	FlipBit(bit uint64) error
}
