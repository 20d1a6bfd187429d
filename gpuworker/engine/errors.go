package engine

import "errors"

// Sentinels of every engine; match with errors.Is. The message around them carries the numbers.
var (
	// ErrInvalid: an argument is outside its documented range; nothing changed.
	ErrInvalid = errors.New("invalid argument")
	// ErrOutOfMemory: the ledger's ceiling or the device's memory does not allow it; the device
	// stays usable.
	ErrOutOfMemory = errors.New("out of device memory")
	// ErrPrecondition: the object is not in a state that allows the call (closed, unsealed, still
	// in use).
	ErrPrecondition = errors.New("failed precondition")
	// ErrTimeout: a step has not ended within the time given to Wait; it may still end.
	ErrTimeout = errors.New("step not finished in time")
	// ErrNoDevice: the device asked for does not exist or cannot be used on this machine.
	ErrNoDevice = errors.New("no such device")
	// ErrUnsupported: this engine does not have the operation.
	ErrUnsupported = errors.New("not supported by this engine")
	// ErrDataLoss: resident bytes differ from those that were loaded.
	ErrDataLoss = errors.New("resident data differs")
	// ErrDevice: the device failed; its runners can only be closed.
	ErrDevice = errors.New("device failure")
)
