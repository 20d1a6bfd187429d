package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/place"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Domain of every status that the scheduler itself makes.
const Domain = rpc.SchedulerDomain

// retrySoon and retryLater are what callers are told to wait where a wait helps.
const (
	retrySoon  = 200 * time.Millisecond
	retryLater = time.Second
)

// table maps sentinels to statuses, matched with errors.Is from the top. A refusal that knows when to come again says so itself.
var table = []struct {
	sentinel error
	code     codes.Code
	reason   string
	retry    time.Duration
}{
	{route.ErrFleetUnknown, codes.Unavailable, reason.FleetUnknown, retrySoon},
	{route.ErrNoWorker, codes.Unavailable, reason.NoWorker, retryLater},
	{route.ErrUnknownModel, codes.NotFound, reason.UnknownModel, 0},
	{route.ErrModelNotLoaded, codes.FailedPrecondition, reason.ModelNotLoaded, 0},
	{route.ErrAmbiguousModel, codes.FailedPrecondition, reason.AmbiguousModel, 0},
	{route.ErrDigestMismatch, codes.FailedPrecondition, reason.DigestMismatch, 0},
	{route.ErrClassMismatch, codes.FailedPrecondition, reason.ClassMismatch, 0},
	{route.ErrWorkersFull, codes.ResourceExhausted, reason.WorkersFull, retryLater},
	{route.ErrTight, codes.ResourceExhausted, reason.WorkersFull, retryLater},
	{route.ErrUnknownCodebook, codes.NotFound, reason.UnknownCodebook, 0},
	{route.ErrCodebookNotLoaded, codes.NotFound, reason.CodebookNotLoaded, 0},
	{route.ErrCodebookFailed, codes.Unavailable, reason.CodebookOutOfService, 0},
	{route.ErrAmbiguousCodebook, codes.FailedPrecondition, reason.AmbiguousCodebook, 0},
	{route.ErrCodebookDigest, codes.FailedPrecondition, reason.CodebookDigestMismatch, 0},
	{route.ErrNoTrainings, codes.Unavailable, reason.NoTrainings, 0},
	{route.ErrTrainingsFull, codes.ResourceExhausted, reason.TooManyTrainings, retryLater},
	{admission.ErrDisplaced, codes.ResourceExhausted, reason.Displaced, retryLater},
	{admission.ErrTooLate, codes.ResourceExhausted, reason.TooLate, retryLater},
	{admission.ErrQueueTimeout, codes.ResourceExhausted, reason.QueueTimeout, retryLater},
	{place.ErrNowhere, codes.NotFound, reason.UnknownModel, 0},
	{place.ErrTooFew, codes.ResourceExhausted, reason.TooFewWorkers, 0},
	{context.DeadlineExceeded, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.Canceled, codes.Canceled, reason.Cancelled, 0},
}

// Status turns an error of this program into a status error with details. A status error, a worker's included, comes
// back as it is; nil is nil.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var refusal *route.Refusal
	numbers, retry := map[string]string(nil), time.Duration(0)
	if errors.As(err, &refusal) {
		numbers, retry = refusal.Numbers, time.Duration(refusal.RetryMillis)*time.Millisecond
	}
	for _, row := range table {
		if errors.Is(err, row.sentinel) {
			return rpc.Fault{
				Code: row.code, Domain: Domain, Reason: row.reason, Message: err.Error(),
				Metadata: numbers, RetryAfter: cmp.Or(retry, row.retry),
			}.Err()
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return rpc.Fault{Code: codes.Internal, Domain: Domain, Reason: reason.Internal, Message: err.Error()}.Err()
}

// Lost is the status of a request whose worker went away after as many tokens had been relayed.
func Lost(workerID string, tokens int64, cause error) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost after %d tokens of this request had been relayed (%v): send it again",
			workerID, tokens, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID, "tokens_relayed": fmt.Sprint(tokens)},
	}.Err()
}

// Unresumed is the status of a stream that broke after as many tokens had been relayed, as said in broke, and that no other
// worker went on with, because of why.
func Unresumed(workerID string, tokens int64, broke, why string) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message:  fmt.Sprintf("%s; %s. With `resume` another request gets the rest", broke, why),
		Metadata: map[string]string{"worker_id": workerID, "tokens_relayed": fmt.Sprint(tokens)},
	}.Err()
}

// LostLoading is the status of a load or unload whose worker went away.
func LostLoading(workerID string, cause error) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost while it loaded or unloaded the model (%v): try again",
			workerID, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// Incomplete is the status of a load that brought fewer copies than wanted; first is the first copy's failure.
func Incomplete(model string, loaded, wanted int, first error) error {
	return rpc.Fault{
		Code: status.Code(first), Domain: Domain, Reason: reason.LoadIncomplete,
		Message: fmt.Sprintf("%d of %d copies of %q are loaded, the first failure: %s",
			loaded, wanted, model, status.Convert(first).Message()),
		Metadata: map[string]string{"model": model, "loaded": fmt.Sprint(loaded), "wanted": fmt.Sprint(wanted),
			"first_reason": rpc.Reason(first)},
	}.Err()
}

// TooManyLoadsUnderWay is the status of a load beside which most others are under way, their callers gone or not.
func TooManyLoadsUnderWay(most int) error {
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.TooManyLoads, RetryAfter: retryLater,
		Message:  fmt.Sprintf("%d loads are under way at this scheduler, which is as many as it follows: try again later", most),
		Metadata: map[string]string{"max_loads": fmt.Sprint(most)},
	}.Err()
}

// StillLoading is UNAVAILABLE for a request that has waited for its model's load for as long as one may; stage says how far that is.
func StillLoading(model, stage string, waited time.Duration) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.ModelLoading, RetryAfter: retryLater,
		Message: fmt.Sprintf("model %q is being loaded for this request (%s) and is not ready after %v, which is as long as one waits: "+
			"the load goes on, try again", model, stage, waited.Round(time.Millisecond)),
		Metadata: map[string]string{"model": model, "waited_ms": fmt.Sprint(waited.Milliseconds())},
	}.Err()
}

// TooManyAwaitLoad is RESOURCE_EXHAUSTED for a request beside which as many wait for its model's load as may.
func TooManyAwaitLoad(model string, most int) error {
	return rpc.Fault{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.WorkersFull, RetryAfter: retryLater,
		Message:  fmt.Sprintf("%d requests wait for model %q to be loaded, which is as many as may: try again later", most, model),
		Metadata: map[string]string{"model": model, "max_waiting": fmt.Sprint(most)},
	}.Err()
}

// OfLoad is the status of a load for a request that waited for it: that the load took too long, or was given up, must not read as
// if the request had.
func OfLoad(err error) error {
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Canceled {
		return err
	}
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.ModelLoading, RetryAfter: retryLater,
		Message: "the load of its model has not ended: " + status.Convert(err).Message(),
	}.Err()
}

// NotTriedAgain is the status of a load that failed, for a request that comes before it is tried again: the worker's own words, and
// when to come back.
func NotTriedAgain(failure error, after time.Duration) error {
	p := status.Convert(failure).Proto()
	p.Message = fmt.Sprintf("%s; its load is tried again in %v at the soonest", p.GetMessage(), after.Round(time.Millisecond))
	p.Details = slices.DeleteFunc(p.GetDetails(), func(d *anypb.Any) bool { return d.MessageIs(&errdetails.RetryInfo{}) })
	if retry, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil { // it always marshals
		p.Details = append(p.Details, retry)
	}
	return status.FromProto(p).Err()
}

// LoadEnded is ABORTED for a load that an unload has ended before its next worker was asked.
func LoadEnded(model string) error {
	return rpc.Fault{
		Code: codes.Aborted, Domain: Domain, Reason: reason.LoadEnded,
		Message:  fmt.Sprintf("the load of %q was ended by an unload", model),
		Metadata: map[string]string{"model": model},
	}.Err()
}

// NotLoaded is NOT_FOUND for a model that no worker has in memory.
func NotLoaded(model string) error {
	return rpc.Fault{
		Code: codes.NotFound, Domain: Domain, Reason: reason.ModelNotLoaded,
		Message:  fmt.Sprintf("model %q is loaded on no worker, and none loads it", model),
		Metadata: map[string]string{"model": model},
	}.Err()
}

// Stopped is UNAVAILABLE for a stream that lasts as long as this scheduler does.
func Stopped() error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.Stopping,
		Message: "this scheduler is stopping: connect to another one", RetryAfter: retryLater,
	}.Err()
}

// Invalid is INVALID_ARGUMENT with every violation.
func Invalid(message string, violations ...rpc.Violation) error {
	return rpc.Fault{
		Code: codes.InvalidArgument, Domain: Domain, Reason: reason.InvalidArgument, Message: message, Violations: violations,
	}.Err()
}

// UnknownWorker is NOT_FOUND for an id that no connected worker has.
func UnknownWorker(id string) error {
	return rpc.Fault{
		Code: codes.NotFound, Domain: Domain, Reason: reason.UnknownWorker,
		Message:  fmt.Sprintf("no connected worker has the id %.64q: see WatchFleet for those there are", id),
		Metadata: map[string]string{"worker_id": id},
	}.Err()
}

// CannotDrain is UNIMPLEMENTED for a worker of an earlier release.
func CannotDrain(workerID string) error {
	return rpc.Fault{
		Code: codes.Unimplemented, Domain: Domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("worker %s is of a release that cannot be told to drain: stop it with SIGTERM, which drains it", workerID),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// LostTelling is the status of a drain, or its end, whose worker went away.
func LostTelling(workerID string, cause error) error {
	return rpc.Fault{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost while it was told to drain or to serve again (%v): see WatchFleet for what it does",
			workerID, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}
