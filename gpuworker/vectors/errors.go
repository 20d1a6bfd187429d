package vectors

import (
	"errors"
	"fmt"
)

// Sentinels; match with errors.Is. Errors of package engine pass through.
var (
	// ErrName: the name is not valid for a codebook.
	ErrName = errors.New("bad codebook name")
	// ErrNotFound: no such file in the codebooks directory.
	ErrNotFound = errors.New("no such codebook")
	// ErrNotLoaded: the file exists and is not loaded.
	ErrNotLoaded = errors.New("codebook is not loaded")
	// ErrExists: another codebook has the name.
	ErrExists = errors.New("another codebook has this name")
	// ErrDigest: the codebook's digest is not the one expected.
	ErrDigest = errors.New("codebook digest differs")
	// ErrFile: the file is not a codebook that can be used.
	ErrFile = errors.New("not a usable codebook file")
	// ErrWrite: the file could not be written to the codebooks directory.
	ErrWrite = errors.New("codebook file was not written")
	// ErrCorrupt: the codebook's resident bytes differ from those that were loaded.
	ErrCorrupt = errors.New("resident codebook differs")
	// ErrFailed: the codebook is out of service; the error has the reason.
	ErrFailed = errors.New("codebook is out of service")
	// ErrNoFit: the device has too little memory; the error is a *FitError.
	ErrNoFit = errors.New("does not fit")
	// ErrNoTrainings: this worker is configured to accept none.
	ErrNoTrainings = errors.New("this worker takes no trainings")
	// ErrTooMany: the configured number of trainings runs already.
	ErrTooMany = errors.New("too many trainings run")
	// ErrInput: a part of a training's input is wrong; the error is an *InputError.
	ErrInput = errors.New("bad input")
	// ErrCheckpoint: the bytes are not a checkpoint of this training.
	ErrCheckpoint = errors.New("not a checkpoint of this training")
	// ErrStopped: the manager is closed.
	ErrStopped = errors.New("worker is stopping")
)

// InputError names the wrong part of a training's input.
type InputError struct {
	Field   string // of the contract: rows, prologue, codeword_type, ...
	Problem string
}

func (e *InputError) Error() string { return e.Field + ": " + e.Problem }

// Unwrap returns ErrInput.
func (e *InputError) Unwrap() error { return ErrInput }

func input(field, format string, args ...any) error {
	return &InputError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// FitError has the memory that was needed and was free.
type FitError struct {
	What         string
	Needed, Free uint64 // device bytes
	// Host bytes for the rows of a training that do not fit on the device.
	Spool, FreeSpool uint64
	// Host bytes that a put needs until its codebook is on the device.
	Host, FreeHost uint64
}

func (e *FitError) Error() string {
	text := fmt.Sprintf("%s %v: it needs %d bytes of device memory and %d are free", e.What, ErrNoFit, e.Needed, e.Free)
	if e.Spool > e.FreeSpool {
		text += fmt.Sprintf("; its rows need %d bytes of host memory in addition, and %d are free", e.Spool, e.FreeSpool)
	}
	if e.Host > e.FreeHost {
		text += fmt.Sprintf("; until it is on the device it needs %d bytes of host memory, and %d are free for that", e.Host, e.FreeHost)
	}
	return text
}

// Unwrap returns ErrNoFit.
func (e *FitError) Unwrap() error { return ErrNoFit }
