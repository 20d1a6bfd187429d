package engine

// Purpose says what bytes are for; the ledger counts each apart.
type Purpose int32

// Purposes of device memory.
const (
	Staging Purpose = iota
	Weights
	KV
	Workspace
	PurposeCount
)

// Digest is a BLAKE3-256 digest.
type Digest [32]byte

// DeviceInfo describes a device and its ledger at one moment.
type DeviceInfo struct {
	Kind     string // "cpu", "cuda", "sim"
	Name     string
	UUID     string // empty when the device has none
	Path     string // instruction-set path or sm_NN; part of the class id
	Numerics string // version of every rule that decides bits; part of the class id
	Build    string // name, compiler and source digest of the engine; part of the class id

	// OneClass: both kernel classes give the same bits, so that what one has computed stands for the other.
	OneClass bool

	// Devices is how many GPUs hold every model together, 1 on a CPU. BytesTotal and BytesFree are what the tightest has times
	// Devices, all else sums, the temperature the highest; buffers and vectors lie on the first. How a model is divided changes no
	// bits, and so is no part of the class id.
	Devices int

	ComputeMajor, ComputeMinor int
	SMCount                    int // streaming multiprocessors; threads on a CPU, which never change bits

	BytesTotal  uint64               // ceiling of the ledger
	BytesFree   uint64               // <= BytesTotal - sum(BytesUsed), and what others leave of the whole device
	BytesUsed   [PurposeCount]uint64 // live bytes by purpose
	BytesPooled uint64               // freed and kept for reuse
	PoolHits    uint64
	PoolMisses  uint64
	LiveBuffers uint64

	FailedFrees uint64 // frees that the driver refused since the device was opened

	// What the driver's management library says; nil: unknown.
	TemperatureC    *int
	PowerMW         *int
	Errors          *uint64 // uncorrected memory errors since the driver was loaded
	CorrectedErrors *uint64
	PhysicalTotal   *uint64 // bytes of the whole device, whoever holds them
	PhysicalFree    *uint64 // of these, free
	// ManagementProblem is why readings are unknown; empty where none should be.
	ManagementProblem string
}

// FreeOnOne is what a single GPU surely has free, of several that hold models together.
func (i *DeviceInfo) FreeOnOne() uint64 { return i.BytesFree / uint64(max(1, i.Devices)) }

// Device is one CPU or GPU, or GPUs that hold models together. Its methods may be called from any goroutine, also while runners step.
type Device interface {
	Info() (DeviceInfo, error)
	// Alloc gives size zeroed bytes; ErrOutOfMemory carries bytes asked and free.
	Alloc(size uint64, purpose Purpose) (Buffer, error)
	// ResidentSize is the device bytes a tensor takes once bound.
	ResidentSize(TensorDesc) (uint64, error)
	// NewModel begins a model; Bind every tensor, then Seal.
	NewModel(ModelDesc) (Model, error)
	// Close fails with ErrPrecondition, and changes nothing, while buffers, models, runners or staged memory live.
	Close() error
}

// Buffer is bytes in device memory. Bounds and lifetime are checked: use after Free is ErrPrecondition. A Free that the
// device refuses (ErrDevice) leaves the buffer as it was, counted, and may be repeated.
type Buffer interface {
	Size() uint64
	WriteAt(p []byte, off int64) (int, error)
	ReadAt(p []byte, off int64) (int, error)
	// CopyTo copies n bytes to dst on the device; the ranges may overlap when dst is this buffer.
	CopyTo(dst Buffer, dstOff, srcOff, n uint64) error
	Fill(value byte, off, n uint64) error
	Digest(off, n uint64) (Digest, error)
	Free() error
}

// Stager is the ability to give memory that Buffer.WriteAt and ReadAt copy at the full rate of the device's link.
type Stager interface {
	// Stage gives size >= 1 bytes of any content, which are the caller's until Free; before, the device's Close fails with
	// ErrPrecondition. ErrUnsupported: any memory is as good. ErrOutOfMemory: there is no more of it now, and any memory is
	// slower.
	Stage(size int) (Staged, error)
}

// Staged is host memory that a device gave.
type Staged interface {
	// Bytes is the memory, and nil after Free. A slice of it must not be used after Free either: Free changes a byte of
	// each page, so that a digest of what is copied from it then differs.
	Bytes() []byte
	// Free waits for a Buffer.WriteAt or ReadAt that uses the memory and gives it back, once. A Free that the device refuses
	// (ErrDevice) leaves the memory the caller's, with any content, and may be repeated.
	Free() error
}

// Refusal is a fault of a device's memory that a test may ask for.
type Refusal int32

// Refusals.
const (
	RefuseAlloc Refusal = 3 // memory that is asked for: ErrOutOfMemory
	RefuseFree  Refusal = 4 // memory that is given back: ErrDevice where there is somebody to tell
)

// Refuser is the ability to refuse memory on request: of the blocks that follow, skip pass and the count behind them are
// refused. A later request of the same kind replaces it; count 0 ends it.
type Refuser interface {
	Refuse(what Refusal, skip int, count uint64) error
}

// Measure names a roof of the device.
type Measure int32

// Roofs, in units a second; a multiply-add counts two.
const (
	MeasureReadBytes Measure = iota
	MeasureInt8Ops
	MeasureF32Ops
	MeasureBF16Ops
)

// Meter is the ability to measure a device's own roofs for benchmarks.
type Meter interface {
	Measure(what Measure, durationNS uint64) (rate float64, err error)
}
