package vectors

import (
	"errors"
	"fmt"
)

// Sentinels; match with errors.Is. Errors of package engine pass through.
var (
	// ErrName: the name is no name of a codebook.
	ErrName = errors.New("bad codebook name")
	// ErrNotFound: no such file in the codebooks directory.
	ErrNotFound = errors.New("no such codebook")
	// ErrNotLoaded: the file exists and is not loaded.
	ErrNotLoaded = errors.New("codebook is not loaded")
	// ErrExists: the name is another codebook's.
	ErrExists = errors.New("another codebook has this name")
	// ErrDigest: the codebook's digest is not the one expected.
	ErrDigest = errors.New("codebook digest differs")
	// ErrFile: the file is not a codebook that can be used.
	ErrFile = errors.New("not a usable codebook file")
	// ErrWrite: the codebooks directory does not take the file.
	ErrWrite = errors.New("codebook file was not written")
	// ErrCorrupt: the codebook's resident bytes are not those that were loaded.
	ErrCorrupt = errors.New("resident codebook differs")
	// ErrFailed: the codebook is out of service; the error says why.
	ErrFailed = errors.New("codebook is out of service")
	// ErrNoFit: the device has too little memory; the error is a *FitError.
	ErrNoFit = errors.New("does not fit")
	// ErrNoTrainings: this worker takes none.
	ErrNoTrainings = errors.New("this worker takes no trainings")
	// ErrTooMany: as many trainings run as may.
	ErrTooMany = errors.New("too many trainings run")
	// ErrInput: what a training was given is not what it takes; the error is an *InputError.
	ErrInput = errors.New("bad input")
	// ErrCheckpoint: the bytes are not a checkpoint of this training.
	ErrCheckpoint = errors.New("not a checkpoint of this training")
	// ErrStopped: the manager has ended.
	ErrStopped = errors.New("worker is stopping")
)

// InputError says what of a training's input is wrong.
type InputError struct {
	Field   string // of the contract: rows, prologue, codeword_type, ...
	Problem string
}

func (e *InputError) Error() string { return e.Field + ": " + e.Problem }

// Unwrap makes the error ErrInput.
func (e *InputError) Unwrap() error { return ErrInput }

func input(field, format string, args ...any) error {
	return &InputError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// FitError says by how much something does not fit.
type FitError struct {
	What         string
	Needed, Free uint64 // device bytes
	// Of a training whose rows the device does not hold: host bytes that they take, and that there are for them.
	Spool, FreeSpool uint64
	// Of a codebook that is being put: host bytes that it takes until it is on the device, and that there are for such.
	Host, FreeHost uint64
}

func (e *FitError) Error() string {
	text := fmt.Sprintf("%s %v: it needs %d bytes of device memory and %d are free", e.What, ErrNoFit, e.Needed, e.Free)
	if e.Spool > e.FreeSpool {
		text += fmt.Sprintf("; its rows need %d bytes of host memory beside that, and %d are free", e.Spool, e.FreeSpool)
	}
	if e.Host > e.FreeHost {
		text += fmt.Sprintf("; on its way it needs %d bytes of host memory, and %d are free for codebooks that are being put", e.Host, e.FreeHost)
	}
	return text
}

// Unwrap makes the error ErrNoFit.
func (e *FitError) Unwrap() error { return ErrNoFit }
