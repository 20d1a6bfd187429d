package engine

// Purpose is the purpose of device memory. The ledger counts each purpose separately.
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

// DeviceInfo describes a device and its ledger at one time.
type DeviceInfo struct {
	Kind     string // "cpu", "cuda", "sim"
	Name     string
	UUID     string // empty when the device has none
	Path     string // instruction-set path or sm_NN; part of the class id
	Numerics string // version of every rule that decides bits; part of the class id
	Build    string // name, compiler and source digest of the engine; part of the class id

	// OneClass is true if both kernel classes give the same bits, so that KV blocks of one can be
	// used by the other.
	OneClass bool

	// HiddenRows is true if runners give hidden rows, which embeddings need.
	HiddenRows bool

	// Devices is how many GPUs hold every model together; 1 on a CPU. BytesTotal and BytesFree are
	// those of the GPU with the least, times Devices. The temperature is the highest, and all other
	// numbers are sums. Buffers and vectors are on the first GPU. The division of a model changes
	// no bits, so it is not part of the class id.
	Devices int

	ComputeMajor, ComputeMinor int
	SMCount                    int // streaming multiprocessors; threads on a CPU, which never change bits

	BytesTotal  uint64               // ceiling of the ledger
	BytesFree   uint64               // <= BytesTotal - sum(BytesUsed), and <= the free memory of the whole device
	BytesUsed   [PurposeCount]uint64 // live bytes by purpose
	BytesPooled uint64               // freed and kept for reuse
	PoolHits    uint64
	PoolMisses  uint64
	LiveBuffers uint64

	FailedFrees uint64 // frees that the driver refused since the device was opened

	// Readings of the driver's management library; nil: unknown.
	TemperatureC    *int
	PowerMW         *int
	Errors          *uint64 // uncorrected memory errors since the driver was loaded
	CorrectedErrors *uint64
	PhysicalTotal   *uint64 // bytes of the whole device, including those of other processes
	PhysicalFree    *uint64 // of these, free
	// ManagementProblem is why readings are unknown. It is empty if the device has none.
	ManagementProblem string
}

// FreeOnOne returns the bytes that each of several GPUs surely has free.
func (i *DeviceInfo) FreeOnOne() uint64 { return i.BytesFree / uint64(max(1, i.Devices)) }

// Device is one CPU or GPU, or several GPUs that hold models together. It is safe for concurrent
// use, also while runners step.
type Device interface {
	Info() (DeviceInfo, error)
	// Alloc returns size zeroed bytes. ErrOutOfMemory has the bytes requested and free.
	Alloc(size uint64, purpose Purpose) (Buffer, error)
	// ResidentSize returns the device bytes of a tensor once it is bound.
	ResidentSize(TensorDesc) (uint64, error)
	// NewModel returns an empty model. Bind every tensor, then Seal.
	NewModel(ModelDesc) (Model, error)
	// Close returns ErrPrecondition, and changes nothing, while buffers, models, runners or staged
	// memory live.
	Close() error
}

// Buffer is device memory. Bounds and lifetime are checked: a use after Free returns
// ErrPrecondition. A Free that the device refuses (ErrDevice) leaves the buffer unchanged and
// counted, and may be repeated.
type Buffer interface {
	Size() uint64
	WriteAt(p []byte, off int64) (int, error)
	ReadAt(p []byte, off int64) (int, error)
	// CopyTo copies n bytes to dst on the device. The ranges may overlap if dst is this buffer.
	CopyTo(dst Buffer, dstOff, srcOff, n uint64) error
	Fill(value byte, off, n uint64) error
	Digest(off, n uint64) (Digest, error)
	Free() error
}

// Stager is the ability to allocate pinned host memory, which Buffer.WriteAt and ReadAt copy at the
// full rate of the device's link.
type Stager interface {
	// Stage returns size >= 1 bytes of any content. They belong to the caller until Free, and until
	// then the device's Close returns ErrPrecondition. ErrUnsupported means that any memory is as
	// fast, ErrOutOfMemory that there is no more staged memory now and that other memory is slower.
	Stage(size int) (Staged, error)
}

// Staged is host memory of a Stager.
type Staged interface {
	// Bytes returns the memory, and nil after Free. A slice of it must not be used after Free
	// either. To show such uses, Free changes a byte of each page, so that a digest of what is
	// copied later differs.
	Bytes() []byte
	// Free waits for a Buffer.WriteAt or ReadAt that uses the memory, and frees it once. After a
	// Free that the device refuses (ErrDevice) the memory still belongs to the caller, with any
	// content, and Free may be repeated.
	Free() error
}

// Refusal is a fault of a device's memory that a test injects.
type Refusal int32

// Refusals.
const (
	RefuseAlloc Refusal = 3 // allocations return ErrOutOfMemory
	RefuseFree  Refusal = 4 // frees fail, with ErrDevice if the call returns an error
)

// Refuser is the ability to inject memory faults. Of the next allocations or frees, skip succeed
// and the following count fail. A later Refuse of the same kind replaces it; count 0 ends it.
type Refuser interface {
	Refuse(what Refusal, skip int, count uint64) error
}

// Measure names a roof of the device's roofline.
type Measure int32

// Roofs, in units a second. A multiply-add counts as two operations.
const (
	MeasureReadBytes Measure = iota
	MeasureInt8Ops
	MeasureF32Ops
	MeasureBF16Ops
)

// Meter is the ability to measure a device's roofs for benchmarks.
type Meter interface {
	Measure(what Measure, durationNS uint64) (rate float64, err error)
}
