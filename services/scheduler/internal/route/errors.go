package route

import (
	"errors"
	"fmt"
)

// Sentinels of Pick; each comes inside a *Refusal with the numbers.
var (
	// ErrFleetUnknown: the scheduler has just started and has not heard from its workers yet.
	ErrFleetUnknown = errors.New("fleet not known yet")
	// ErrNoWorker: no worker that could serve it can be reached or takes requests now.
	ErrNoWorker = errors.New("no worker reachable")
	// ErrUnknownModel: no worker has the model, in memory or on disk.
	ErrUnknownModel = errors.New("unknown model")
	// ErrModelNotLoaded: the model is on disk, or on its way in or out, and serves nowhere.
	ErrModelNotLoaded = errors.New("model not loaded")
	// ErrAmbiguousModel: workers serve different models under one name, and the request does not say which it wants.
	ErrAmbiguousModel = errors.New("ambiguous model")
	// ErrDigestMismatch: the model is served with other digests than the one asked for.
	ErrDigestMismatch = errors.New("model digest differs")
	// ErrClassMismatch: the model is served by other classes of worker than the one asked for.
	ErrClassMismatch = errors.New("worker class differs")
	// ErrWorkersFull: every worker that could serve it has as many requests as it may.
	ErrWorkersFull = errors.New("every worker is full")
	// ErrTight: workers have places left, and none as many as the request needs together with the memory for its prompt.
	ErrTight = errors.New("no worker has room for a request of this size")
)

// Refusal is why no worker was picked. It matches its sentinel with errors.Is.
type Refusal struct {
	// Err is the sentinel.
	Err error
	// Message says what, where and what to do.
	Message string
	// Numbers are for programs.
	Numbers map[string]string
	// Loadable is whether a load would help: nobody serves the model, and a worker that takes requests has its file.
	Loadable bool
	// Digest is what the load must bring: that of the copies which cannot be reached now, and will be there beside it when they
	// return; empty is any.
	Digest string
	// Returns is whether a worker that has it loaded may be back by itself: it is lost, or starting. Then a load is for later.
	Returns bool
	// Unready is whether a worker that has the context which the request needs is connected and NOT_READY.
	Unready bool
	// RetryMillis is in how many milliseconds it may be tried again; 0: nobody knows.
	RetryMillis int64
}

// Loadable is the refusal in an error, if a load would help; else nil.
func Loadable(err error) *Refusal {
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Loadable {
		return refusal
	}
	return nil
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Err, r.Message) }

// Unwrap is the sentinel.
func (r *Refusal) Unwrap() error { return r.Err }

// refuse makes a refusal; numbers are key, value, ...
func refuse(sentinel error, message string, numbers ...string) *Refusal {
	r := &Refusal{Err: sentinel, Message: message, Numbers: map[string]string{}}
	for i := 0; i+1 < len(numbers); i += 2 {
		r.Numbers[numbers[i]] = numbers[i+1]
	}
	return r
}
