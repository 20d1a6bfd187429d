package model

import "errors"

// Sentinels of the life cycle; match with errors.Is. Errors of packages gguf, arch, engine and tokenizer pass through.
var (
	// ErrName: the name is no name of a model file.
	ErrName = errors.New("bad model name")
	// ErrNotFound: no such file in the models directory.
	ErrNotFound = errors.New("no such model")
	// ErrNotLoaded: the file exists and is not loaded.
	ErrNotLoaded = errors.New("model is not loaded")
	// ErrOption: a load option is out of range.
	ErrOption = errors.New("bad load option")
	// ErrOptions: the model is loaded, or is being loaded, with other options. It comes as a *OptionsError.
	ErrOptions = errors.New("model has other options")
	// ErrDigest: the model's digest is not the one expected.
	ErrDigest = errors.New("model digest differs")
	// ErrNoFit: the device has too little memory; the error is a *FitError.
	ErrNoFit = errors.New("model does not fit")
	// ErrTooManyLoads: as many models are being loaded as may be.
	ErrTooManyLoads = errors.New("too many models are being loaded")
	// ErrCorrupt: a tensor's resident bytes are not those of the file.
	ErrCorrupt = errors.New("resident tensor differs from its file")
	// ErrDraining: the model is being unloaded.
	ErrDraining = errors.New("model is being unloaded")
	// ErrUnloaded: the model was unloaded under a running request.
	ErrUnloaded = errors.New("model was unloaded")
	// ErrLoadEnded: the model was unloaded while it was being loaded.
	ErrLoadEnded = errors.New("the load was ended by an unload")
	// ErrFailed: the model is out of service; the error says why.
	ErrFailed = errors.New("model is out of service")
	// ErrHeld: the device does not take memory of the model back; the model is out of service and holds it, others serve on.
	ErrHeld = errors.New("the device does not take its memory back")
	// ErrStopped: the manager has ended.
	ErrStopped = errors.New("worker is stopping")
)
