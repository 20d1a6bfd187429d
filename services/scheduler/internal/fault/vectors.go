package fault

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// TooManyVectorCalls is RESOURCE_EXHAUSTED for a call of vectors beside which as many are under way as may.
func TooManyVectorCalls(most int64) error {
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.TooManyVectorCalls, RetryAfter: retrySoon,
		Message:  fmt.Sprintf("%d calls of vectors are under way at this scheduler, which is as many as may: try again later", most),
		Metadata: map[string]string{"max_calls": strconv.FormatInt(most, 10)},
	}.Err()
}

// TooManyVectorBytes is RESOURCE_EXHAUSTED for a call of vectors of so many bytes, beside which too many are under way.
func TooManyVectorBytes(bytes, used, most int64) error {
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.TooManyBytesWaiting, RetryAfter: retrySoon,
		Message: fmt.Sprintf("the call takes %d bytes, calls of vectors hold %d at this scheduler and %d is as many as may: try again later",
			bytes, used, most),
		Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(used, 10),
			"max_waiting_bytes": strconv.FormatInt(most, 10)},
	}.Err()
}

// TooLarge is RESOURCE_EXHAUSTED for a message of vectors above the contract's bound.
func TooLarge(bytes, most int) error {
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.MessageTooLarge,
		Message:  fmt.Sprintf("the message has %d bytes, and one of vectors has %d at most: send it in pieces", bytes, most),
		Metadata: map[string]string{"bytes": strconv.Itoa(bytes), "max_bytes": strconv.Itoa(most)},
	}.Err()
}

// Malformed is INVALID_ARGUMENT for bytes that are not the message.
func Malformed(message, what string) error {
	return rpc.Fault{
		Code: codes.InvalidArgument, Domain: Domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s %s", message, what), Metadata: map[string]string{"message": message},
	}.Err()
}

// LostVectors is the status of a call of vectors whose worker went away: it is pure, or changes nothing the second time.
func LostVectors(workerID string, cause error) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost in the middle of the call (%v): send it again", workerID,
			status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// LostTraining is the status of a training whose worker went away. checkpoint is the iteration of the last whole checkpoint that was
// relayed, if has.
func LostTraining(workerID string, checkpoint uint64, has bool, cause error) error {
	f := rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Metadata: map[string]string{"worker_id": workerID},
	}
	lost := fmt.Sprintf("worker %s was lost in the middle of the training (%v), which does not move by itself", workerID,
		status.Convert(cause).Message())
	if has {
		f.Metadata["checkpoint_iteration"] = strconv.FormatUint(checkpoint, 10)
		f.Message = fmt.Sprintf("%s: send it again with `resume_bytes` and the checkpoint of iteration %d as `prologue`, and it goes on from "+
			"there on any worker, to the same bits", lost, checkpoint)
	} else {
		f.Message = lost + ": send it again from the start, with its seed to the same bits; with `checkpoint_interval` it could go on from a checkpoint"
	}
	return f.Err()
}

// CodebookExists is ALREADY_EXISTS for a name that has another digest on a worker.
func CodebookExists(codebook, workerID, digest string) error {
	return rpc.Fault{
		Code: codes.AlreadyExists, Domain: Domain, Reason: reason.CodebookExists,
		Message:  fmt.Sprintf("worker %s has a codebook %q with digest %s: set replace, or use another name", workerID, codebook, digest),
		Metadata: map[string]string{"codebook": codebook, "worker_id": workerID, "digest": digest},
	}.Err()
}

// CodebookNotLoaded is NOT_FOUND for a codebook that no worker has in memory.
func CodebookNotLoaded(codebook string) error {
	return rpc.Fault{
		Code: codes.NotFound, Domain: Domain, Reason: reason.CodebookNotLoaded,
		Message:  fmt.Sprintf("codebook %q is loaded on no worker", codebook),
		Metadata: map[string]string{"codebook": codebook},
	}.Err()
}

// CopyFailure is how one of several copies failed.
type CopyFailure struct {
	WorkerID string
	Err      error // a status
}

// IncompleteCopies is the status of copies of a codebook of which some were not made; done are the workers that have one.
func IncompleteCopies(codebook string, wanted int, done []string, failures []CopyFailure) error {
	f := rpc.Fault{
		Code: status.Code(failures[0].Err), Domain: Domain, Reason: reason.LoadIncomplete, RetryAfter: rpc.RetryAfter(failures[0].Err),
		Metadata: map[string]string{"codebook": codebook, "loaded": strconv.Itoa(len(done)), "wanted": strconv.Itoa(wanted),
			"first_reason": rpc.Reason(failures[0].Err), "workers": strings.Join(done, ",")},
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d copies of %q are there, which stay", len(done), wanted, codebook)
	var failed []string
	for _, one := range failures {
		failed = append(failed, one.WorkerID)
		fmt.Fprintf(&text, "; %s: %s", one.WorkerID, status.Convert(one.Err).Message())
	}
	f.Metadata["failed_workers"] = strings.Join(failed, ",")
	f.Message = text.String()
	return f.Err()
}

// StillLoadingCodebook is UNAVAILABLE for a call that has waited for its codebook's load for as long as one may.
func StillLoadingCodebook(codebook string, waited time.Duration) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.ModelLoading, RetryAfter: retryLater,
		Message: fmt.Sprintf("codebook %q is being loaded for this call and is not ready after %v, which is as long as one waits: "+
			"the load goes on, try again", codebook, waited.Round(time.Millisecond)),
		Metadata: map[string]string{"codebook": codebook, "waited_ms": strconv.FormatInt(waited.Milliseconds(), 10)},
	}.Err()
}
