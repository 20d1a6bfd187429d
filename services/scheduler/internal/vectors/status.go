package vectors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Sentinels of pickCodebook and pickTraining; each comes inside a *route.Refusal with the numbers.
var (
	// errUnknownCodebook: no worker has the codebook, in memory or on disk.
	errUnknownCodebook = errors.New("unknown codebook")
	// errCodebookNotLoaded: the codebook is on disk, and no worker serves it.
	errCodebookNotLoaded = errors.New("codebook not loaded")
	// errCodebookFailed: every copy of the codebook is out of service.
	errCodebookFailed = errors.New("codebook out of service")
	// errAmbiguousCodebook: workers serve different codebooks under one name, and the request does
	// not say which it wants.
	errAmbiguousCodebook = errors.New("ambiguous codebook")
	// errCodebookDigest: the codebook is served with other digests than the one asked for.
	errCodebookDigest = errors.New("codebook digest differs")
	// errNoTrainings: every worker is configured to accept no trainings.
	errNoTrainings = errors.New("no worker takes trainings")
	// errTrainingsFull: every worker that has memory for the training runs its maximum.
	errTrainingsFull = errors.New("every worker runs its maximum of trainings")
)

// sentinels are this package's rows of the table of statuses.
var sentinels = []rpcstatus.Row{
	{Sentinel: errUnknownCodebook, Code: codes.NotFound, Reason: reason.UnknownCodebook},
	{Sentinel: errCodebookNotLoaded, Code: codes.NotFound, Reason: reason.CodebookNotLoaded},
	{Sentinel: errCodebookFailed, Code: codes.Unavailable, Reason: reason.CodebookOutOfService},
	{Sentinel: errAmbiguousCodebook, Code: codes.FailedPrecondition, Reason: reason.AmbiguousCodebook},
	{Sentinel: errCodebookDigest, Code: codes.FailedPrecondition, Reason: reason.CodebookDigestMismatch},
	{Sentinel: errNoTrainings, Code: codes.Unavailable, Reason: reason.NoTrainings},
	{Sentinel: errTrainingsFull, Code: codes.ResourceExhausted, Reason: reason.TooManyTrainings, Retry: rpcstatus.RetryLater},
}

// statusOf is rpcstatus.Of with the sentinels of this package.
func statusOf(err error) error { return rpcstatus.Of(err, sentinels...) }

// tooManyCalls is RESOURCE_EXHAUSTED for a call above Config.MaxCalls.
func tooManyCalls(most int64) error {
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: rpcstatus.Domain, Reason: reason.TooManyVectorCalls, RetryAfter: rpcstatus.RetrySoon,
		Message:  fmt.Sprintf("this scheduler already runs its maximum of %d calls of vectors: try again later", most),
		Metadata: map[string]string{"max_calls": strconv.FormatInt(most, 10)},
	}.Err()
}

// tooManyBytes is RESOURCE_EXHAUSTED for a call whose bytes would exceed Config.MaxBytes.
func tooManyBytes(bytes, used, most int64) error {
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: rpcstatus.Domain, Reason: reason.TooManyBytesWaiting, RetryAfter: rpcstatus.RetrySoon,
		Message: fmt.Sprintf("the call needs %d bytes, and calls of vectors hold %d of at most %d at this scheduler: try again later",
			bytes, used, most),
		Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(used, 10),
			"max_waiting_bytes": strconv.FormatInt(most, 10)},
	}.Err()
}

// tooLarge is RESOURCE_EXHAUSTED for a message of vectors above the contract's bound.
func tooLarge(bytes, most int) error {
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: rpcstatus.Domain, Reason: reason.MessageTooLarge,
		Message:  fmt.Sprintf("the message has %d bytes, and the limit for vectors is %d: send it in pieces", bytes, most),
		Metadata: map[string]string{"bytes": strconv.Itoa(bytes), "max_bytes": strconv.Itoa(most)},
	}.Err()
}

// malformed is INVALID_ARGUMENT for bytes that are not the message.
func malformed(message, what string) error {
	return rpc.Error{
		Code: codes.InvalidArgument, Domain: rpcstatus.Domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s %s", message, what), Metadata: map[string]string{"message": message},
	}.Err()
}

// lostCall is the status of a call whose worker went away. The caller may send it again: the call
// has no effect, or none the second time.
func lostCall(workerID string, cause error) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: rpcstatus.Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost in the middle of the call (%v): send it again", workerID,
			status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// lostTraining is the status of a training whose worker went away. checkpoint is the iteration of
// the last complete checkpoint that was relayed, if there is one (has).
func lostTraining(workerID string, checkpoint uint64, has bool, cause error) error {
	f := rpc.Error{
		Code: codes.Unavailable, Domain: rpcstatus.Domain, Reason: reason.WorkerLost,
		Metadata: map[string]string{"worker_id": workerID},
	}
	lost := fmt.Sprintf("worker %s was lost in the middle of the training (%v), and a training does not move to another worker by itself", workerID,
		status.Convert(cause).Message())
	if has {
		f.Metadata["checkpoint_iteration"] = strconv.FormatUint(checkpoint, 10)
		f.Message = fmt.Sprintf("%s: send it again with `resume_bytes` and the checkpoint of iteration %d as `prologue`, and it "+
			"continues from there on any worker, to the same bits", lost, checkpoint)
	} else {
		f.Message = lost + ": send it again from the start, with its seed to the same bits; with `checkpoint_interval` it could resume from a checkpoint"
	}
	return f.Err()
}

// codebookExists is ALREADY_EXISTS for a name that has another digest on a worker.
func codebookExists(codebook, workerID, digest string) error {
	return rpc.Error{
		Code: codes.AlreadyExists, Domain: rpcstatus.Domain, Reason: reason.CodebookExists,
		Message:  fmt.Sprintf("worker %s has a codebook %q with digest %s: set replace, or use another name", workerID, codebook, digest),
		Metadata: map[string]string{"codebook": codebook, "worker_id": workerID, "digest": digest},
	}.Err()
}

// codebookNotLoaded is NOT_FOUND for a codebook that no worker has in memory.
func codebookNotLoaded(codebook string) error {
	return rpc.Error{
		Code: codes.NotFound, Domain: rpcstatus.Domain, Reason: reason.CodebookNotLoaded,
		Message:  fmt.Sprintf("codebook %q is loaded on no worker", codebook),
		Metadata: map[string]string{"codebook": codebook},
	}.Err()
}

// copyFailure is why a worker has no copy.
type copyFailure struct {
	workerID string
	err      error // a status
}

// incompleteCopies is the status of a request for several copies of which some failed. done are the
// workers that have one.
func incompleteCopies(codebook string, wanted int, done []string, failures []copyFailure) error {
	f := rpc.Error{
		Code: status.Code(failures[0].err), Domain: rpcstatus.Domain, Reason: reason.LoadIncomplete, RetryAfter: rpc.RetryAfter(failures[0].err),
		Metadata: map[string]string{"codebook": codebook, "loaded": strconv.Itoa(len(done)), "wanted": strconv.Itoa(wanted),
			"first_reason": rpc.Reason(failures[0].err), "workers": strings.Join(done, ",")},
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d copies of %q were made and stay", len(done), wanted, codebook)
	var failed []string
	for _, one := range failures {
		failed = append(failed, one.workerID)
		fmt.Fprintf(&text, "; %s: %s", one.workerID, status.Convert(one.err).Message())
	}
	f.Metadata["failed_workers"] = strings.Join(failed, ",")
	f.Message = text.String()
	return f.Err()
}

// stillLoading is UNAVAILABLE for a call that has waited for its codebook's load for
// Config.OnDemand.
func stillLoading(codebook string, waited time.Duration) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: rpcstatus.Domain, Reason: reason.ModelLoading, RetryAfter: rpcstatus.RetryLater,
		Message: fmt.Sprintf("codebook %q is being loaded for this call and is not ready after %v, the limit of the wait: "+
			"the load continues, try again", codebook, waited.Round(time.Millisecond)),
		Metadata: map[string]string{"codebook": codebook, "waited_ms": strconv.FormatInt(waited.Milliseconds(), 10)},
	}.Err()
}
