package route

import (
	"errors"
	"fmt"
)

// Sentinels of Pick. Each comes in a *Refusal with numbers, except for the last two.
var (
	// ErrFleetUnknown: the scheduler has just started and has no reports of its workers yet.
	ErrFleetUnknown = errors.New("fleet not known yet")
	// ErrNoWorker: no worker that could serve it can be reached and accepts requests now.
	ErrNoWorker = errors.New("no worker reachable")
	// ErrUnknownModel: no worker has the model in memory or on disk.
	ErrUnknownModel = errors.New("unknown model")
	// ErrModelNotLoaded: the model is on disk, loads or unloads, and no worker serves it.
	ErrModelNotLoaded = errors.New("model not loaded")
	// ErrAmbiguousModel: workers serve different models under one name, and the request does not
	// state a digest.
	ErrAmbiguousModel = errors.New("ambiguous model")
	// ErrDigestMismatch: no worker serves the model with the digest that the request expects.
	ErrDigestMismatch = errors.New("model digest differs")
	// ErrClassMismatch: no worker of the class that the request expects serves the model.
	ErrClassMismatch = errors.New("worker class differs")
	// ErrWorkersFull: every worker that could serve it has as many requests as it may have.
	ErrWorkersFull = errors.New("every worker is full")
	// ErrTooLarge: workers have free slots, but none has as many as the request needs and memory
	// for its prompt.
	ErrTooLarge = errors.New("no worker has room for a request of this size")
)

// Refusal is the reason for which no worker was chosen. It matches its sentinel with errors.Is.
type Refusal struct {
	// Err is the sentinel.
	Err error
	// Message names the problem, its place and the remedy.
	Message string
	// Numbers are the metadata of the status, for programs.
	Numbers map[string]string
	// Loadable means that a load would help: no worker serves the model, and one that accepts
	// requests has its file.
	Loadable bool
	// Digest is the digest that the load must have: that of the copies that cannot be reached now,
	// because these may return while the new one serves; empty: any.
	Digest string
	// Returns means that a worker which has the model loaded may come back by itself, because it is
	// lost or starting. Then a load should wait.
	Returns bool
	// Unready means that a worker with the context that the request needs is connected and NOT_READY.
	Unready bool
	// RetryMillis is the delay before a retry, in milliseconds; 0: not known.
	RetryMillis int64
}

// Loadable returns the refusal in an error if a load would help; else nil.
func Loadable(err error) *Refusal {
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Loadable {
		return refusal
	}
	return nil
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Err, r.Message) }

// Unwrap returns the sentinel.
func (r *Refusal) Unwrap() error { return r.Err }

// Refuse returns a refusal. numbers are key, value, ...
func Refuse(sentinel error, message string, numbers ...string) *Refusal {
	r := &Refusal{Err: sentinel, Message: message, Numbers: map[string]string{}}
	for i := 0; i+1 < len(numbers); i += 2 {
		r.Numbers[numbers[i]] = numbers[i+1]
	}
	return r
}
