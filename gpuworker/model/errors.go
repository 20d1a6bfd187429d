package model

import (
	"errors"
)

// Sentinels of the life cycle, for errors.Is. Errors of packages gguf, arch, engine and tokenizer
// pass through.
var (
	// ErrPanicked: a load panicked. The log has its stack.
	ErrPanicked = errors.New("the load panicked: this is a bug, and the worker's log has its stack")
	// ErrName: not a valid name of a model file.
	ErrName = errors.New("bad model name")
	// ErrNotFound: no such file in the models directory.
	ErrNotFound = errors.New("no such model")
	// ErrNotLoaded: the file exists but is not loaded.
	ErrNotLoaded = errors.New("model is not loaded")
	// ErrOption: a load option is out of range.
	ErrOption = errors.New("bad load option")
	// ErrOptions: the model has other options. It comes as an *OptionsError.
	ErrOptions = errors.New("model has other options")
	// ErrDigest: the model's digest is not the expected one.
	ErrDigest = errors.New("model digest differs")
	// ErrNoFit: the device has too little memory. It comes as a *FitError.
	ErrNoFit = errors.New("model does not fit")
	// ErrTooManyLoads: Config.MaxLoads loads run.
	ErrTooManyLoads = errors.New("too many models are being loaded")
	// ErrCorrupt: a tensor's resident bytes differ from the file's.
	ErrCorrupt = errors.New("resident tensor differs from its file")
	// ErrDraining: the model is being unloaded.
	ErrDraining = errors.New("model is being unloaded")
	// ErrUnloaded: the model was unloaded during a request.
	ErrUnloaded = errors.New("model was unloaded")
	// ErrLoadEnded: the model was unloaded during its load.
	ErrLoadEnded = errors.New("the load was ended by an unload")
	// ErrFailed: the model is out of service, for the wrapped reason.
	ErrFailed = errors.New("model is out of service")
	// ErrHeld: the device refuses to free the model's memory. The model is out of service and owns
	// it.
	ErrHeld = errors.New("the device does not take its memory back")
	// ErrStopped: the manager has ended.
	ErrStopped = errors.New("worker is stopping")
)
