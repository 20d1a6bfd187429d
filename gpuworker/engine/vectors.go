package engine

import "time"

// VectorNumerics is the version of every rule that decides the bits of codebooks:
// docs/decisions/029-vector-numerics.md.
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

// Size returns the bytes of one element.
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

// CodebookKind is the kind of a codebook.
type CodebookKind int32

// Kinds of codebooks.
const (
	Flat    CodebookKind = iota // a code is a codeword of the whole row
	Product                     // the row is cut into subspaces, each with codewords and a code of its own
)

// Metric is the distance by which the nearest codeword is found.
type Metric int32

// Metrics. A product codebook supports L2 only.
const (
	L2           Metric = iota // the least sum of squared differences
	InnerProduct               // the largest inner product with a codeword of length 1
	Cosine                     // InnerProduct of the row divided by its length
)

// Algorithm is the update of the codewords in a round.
type Algorithm int32

// Algorithms. Annealed supports L2 only.
const (
	Lloyd    Algorithm = iota // each to the mean of its rows
	Annealed                  // each towards the trimmed mean of its rows, by less from round to round
)

// Init selects the first codewords.
type Init int32

// Inits. KMeansPlusPlus and Farthest take one step a codeword: at most MaxSequential codewords, and
// not with InnerProduct.
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

// CodebookDesc is the shape of a codebook. Its bytes are (Subspaces, Codewords,
// Dimension/Subspaces) of Type, little-endian.
type CodebookDesc struct {
	Kind      CodebookKind
	Metric    Metric
	Dimension int     // 1..MaxDimension
	Codewords int     // of each subspace, 1..MaxCodewords
	Subspaces int     // a divisor of Dimension; Flat: 1
	Type      Element // VectorF32, VectorF16 or VectorBF16
}

// Width returns the elements of one codeword.
func (d CodebookDesc) Width() int { return d.Dimension / d.Subspaces }

// Bytes returns the bytes of all codewords.
func (d CodebookDesc) Bytes() uint64 {
	return uint64(d.Codewords) * uint64(d.Dimension) * uint64(d.Type.Size())
}

// CodeSize returns the bytes of one code: that of a uint8 up to 256 codewords, else of a uint16.
func (d CodebookDesc) CodeSize() int {
	if d.Codewords <= 256 {
		return 1
	}
	return 2
}

// Annealing has the parameters of Annealed. mr_trainer_config in vectors.h explains each.
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
	StableRounds    int     // >= 1; this number of stable rounds in a row ends the training
	Annealing       Annealing
	SpoolBytes      uint64 // host memory for rows that do not fit into device memory; 0 = none
}

// TrainerCost is the memory of a trainer that is made now. It allocates no more later. Rows are
// spooled only if they do not fit into the free device memory.
type TrainerCost struct {
	DeviceBytes uint64
	SpoolBytes  uint64 // of host memory; 0 = the rows are resident
}

// Vectors is the ability of a device to train, hold and use codebooks. ErrUnsupported: this engine
// lacks it.
type Vectors interface {
	TrainerCost(TrainerConfig) (TrainerCost, error)
	// NewTrainer allocates all memory of a training. ErrOutOfMemory has the bytes requested and
	// free.
	NewTrainer(TrainerConfig) (Trainer, error)
	// NewCodebook copies codewords, which must be finite.
	NewCodebook(desc CodebookDesc, codewords []byte) (Codebook, error)
}

// Slice bounds a part of a training's work. It ends at the first bound, but after at least one unit
// of the engine's work.
type Slice struct {
	Budget time.Duration // of device time; 0 = no bound
	Rounds int           // >= 1
}

// Round is one assignment of every row, and the update that follows.
type Round struct {
	Iteration     int64   // updates before it
	Energy        float64 // mean distance of the rows from their codewords
	Changes       int64   // ids that differ from the round before; all in round 0
	Temperature   float64 // of its update; 0 for Lloyd
	Empty         int64   // codewords without a row
	Merged, Split int64   // in the maintenance after its update
	Imbalance     float64 // mean over subspaces of codewords * sum of squared loads / rows^2; 1 = even
}

// Phase is the phase of a training.
type Phase int32

// Phases.
const (
	Writing Phase = iota
	Seeding
	Assigning
	Updating
	Done
)

// Reason is why a training ended.
type Reason int32

// Reasons.
const (
	Unfinished Reason = iota
	ReachedMaxIterations
	Converged
)

// Training is the progress of a training at the end of a slice.
type Training struct {
	Rounds              []Round // those that the slice ended, in order
	Phase               Phase
	Reason              Reason
	RowsDone, RowsTotal uint64 // of the phase
	Computed            uint64 // ids found since the trainer was made
	Recomputed          uint64 // of these, those that needed float64; differs by device and does not affect the bits
	DeviceTime          time.Duration
}

// Trainer holds the rows of one training, its codebook and its workspace. It is used by one
// goroutine at a time.
type Trainer interface {
	// Write appends whole rows. first is the number of rows written before. ErrInvalid names the
	// first row that is not finite; no row of the chunk is written then.
	Write(first uint64, rows []byte) error
	// Give sets the codewords for Init Given. Call it before the first Submit.
	Give(codewords []byte) error
	// Restore sets a state that State returned for the same rows and the same configuration, except
	// the limits that end a training. Call it before the first Submit.
	Restore(state []byte) error
	// Submit starts a slice. At most two are in flight. ErrPrecondition: rows or given codewords
	// are missing, or the training is Done. ErrInvalid: the codewords' type cannot hold the rows'
	// largest value.
	Submit(Slice) error
	// Wait returns the progress at the end of the oldest slice. ErrTimeout: it has not ended.
	// ErrPrecondition: none is in flight.
	Wait(timeout time.Duration) (Training, error)
	// Codewords, IDs, Loads and State are of the last round; no slice may be in flight
	// (ErrPrecondition).
	Codewords() ([]byte, error)
	IDs() ([]uint32, error)   // (Rows, Subspaces)
	Loads() ([]uint64, error) // (Subspaces, Codewords)
	// Variances returns the mean distance of each codeword's rows, (Subspaces, Codewords): with L2
	// their variance. It is 0 for a codeword without rows. ErrPrecondition: the training is not
	// Done.
	Variances() ([]float64, error)
	State() ([]byte, error) // equal bytes on every engine
	// Close waits for slices in flight, at most one unit of work each, and frees all memory.
	Close() error
}

// Codes are the codes of encoded rows.
type Codes struct {
	// Codes are (rows, Subspaces), or (rows, neighbours) nearest first, of CodeSize bytes each,
	// little-endian.
	Codes []byte
	// Distances has one for each code, or one for each row of a product codebook; nil if none were
	// requested.
	Distances []float32
	// Recomputed counts the ids that needed float64.
	Recomputed uint64
}

// Encoding is a request to encode rows.
type Encoding struct {
	Element    Element
	Rows       []byte // whole rows, finite
	Neighbours int    // Flat: 1..MaxNeighbours, at most Codewords; Product: 1
	Distances  bool
}

// Codebook is a codebook in device memory. It is safe for concurrent use.
type Codebook interface {
	// Encode is pure: equal rows get equal codes, whatever other rows are in the call. ErrInvalid
	// names the first row that is not finite.
	Encode(Encoding) (Codes, error)
	// Decode returns codewords, (rows, Dimension) of Type. ErrInvalid names the first code without
	// a codeword.
	Decode(codes []byte) ([]byte, error)
	// Digest returns BLAKE3 of the codewords' resident bytes.
	Digest() (Digest, error)
	Close() error
}

// CodebookBitFlipper is the ability of a codebook to inject a flipped bit.
type CodebookBitFlipper interface {
	// FlipBit flips one bit of the codewords' bytes.
	FlipBit(bit uint64) error
}
