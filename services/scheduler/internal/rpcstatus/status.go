package rpcstatus

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
	"github.com/millrace/millrace/services/scheduler/internal/placement"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Domain is that of every status that the scheduler itself makes.
const Domain = rpc.SchedulerDomain

// RetrySoon and RetryLater are the delays that callers get where a retry helps.
const (
	RetrySoon  = 200 * time.Millisecond
	RetryLater = time.Second
)

// Row maps a sentinel to a status. Retry is zero where a retry does not help.
type Row struct {
	Sentinel error
	Code     codes.Code
	Reason   string
	Retry    time.Duration
}

// table is matched with errors.Is from the top. A refusal that has its own retry delay overrides
// Retry.
var table = []Row{
	{route.ErrFleetUnknown, codes.Unavailable, reason.FleetUnknown, RetrySoon},
	{route.ErrNoWorker, codes.Unavailable, reason.NoWorker, RetryLater},
	{route.ErrUnknownModel, codes.NotFound, reason.UnknownModel, 0},
	{route.ErrModelNotLoaded, codes.FailedPrecondition, reason.ModelNotLoaded, 0},
	{route.ErrAmbiguousModel, codes.FailedPrecondition, reason.AmbiguousModel, 0},
	{route.ErrDigestMismatch, codes.FailedPrecondition, reason.DigestMismatch, 0},
	{route.ErrClassMismatch, codes.FailedPrecondition, reason.ClassMismatch, 0},
	{route.ErrWorkersFull, codes.ResourceExhausted, reason.WorkersFull, RetryLater},
	{route.ErrTooLarge, codes.ResourceExhausted, reason.WorkersFull, RetryLater},
	{admission.ErrDisplaced, codes.ResourceExhausted, reason.Displaced, RetryLater},
	{admission.ErrTooLate, codes.ResourceExhausted, reason.TooLate, RetryLater},
	{admission.ErrQueueTimeout, codes.ResourceExhausted, reason.QueueTimeout, RetryLater},
	{placement.ErrNowhere, codes.NotFound, reason.UnknownModel, 0},
	{placement.ErrTooFew, codes.ResourceExhausted, reason.TooFewWorkers, 0},
	{context.DeadlineExceeded, codes.DeadlineExceeded, reason.DeadlineExceeded, 0},
	{context.Canceled, codes.Canceled, reason.Cancelled, 0},
}

// Of converts an error of this process into a status error with details. A status error, also that
// of a worker, is returned unchanged; nil stays nil. more are the rows of packages that this one
// does not import; they are matched first.
func Of(err error, more ...Row) error {
	if err == nil {
		return nil
	}
	var refusal *route.Refusal
	numbers, retry := map[string]string(nil), time.Duration(0)
	if errors.As(err, &refusal) {
		numbers, retry = refusal.Numbers, time.Duration(refusal.RetryMillis)*time.Millisecond
	}
	for _, rows := range [][]Row{more, table} {
		for _, row := range rows {
			if errors.Is(err, row.Sentinel) {
				return rpc.Error{
					Code: row.Code, Domain: Domain, Reason: row.Reason, Message: err.Error(),
					Metadata: numbers, RetryAfter: cmp.Or(retry, row.Retry),
				}.Err()
			}
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return rpc.Error{Code: codes.Internal, Domain: Domain, Reason: reason.Internal, Message: err.Error()}.Err()
}

// Lost returns UNAVAILABLE for a request whose worker was lost after tokens had been relayed.
func Lost(workerID string, tokens int64, cause error) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost after %d tokens of this request had been relayed (%v): send it again",
			workerID, tokens, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID, "tokens_relayed": fmt.Sprint(tokens)},
	}.Err()
}

// Unresumed returns UNAVAILABLE for a stream that broke after tokens had been relayed, and that no
// other worker resumed. broke says how it broke, why says why it was not resumed.
func Unresumed(workerID string, tokens int64, broke, why string) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message:  fmt.Sprintf("%s; %s. With `resume` another request gets the rest", broke, why),
		Metadata: map[string]string{"worker_id": workerID, "tokens_relayed": fmt.Sprint(tokens)},
	}.Err()
}

// LostLoading returns UNAVAILABLE for a load or unload whose worker was lost.
func LostLoading(workerID string, cause error) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost while it loaded or unloaded the model (%v): try again",
			workerID, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// Incomplete returns the status of a load that made fewer copies than wanted. first is the first
// failure.
func Incomplete(model string, loaded, wanted int, first error) error {
	return rpc.Error{
		Code: status.Code(first), Domain: Domain, Reason: reason.LoadIncomplete,
		Message: fmt.Sprintf("%d of %d copies of %q are loaded, the first failure: %s",
			loaded, wanted, model, status.Convert(first).Message()),
		Metadata: map[string]string{"model": model, "loaded": fmt.Sprint(loaded), "wanted": fmt.Sprint(wanted),
			"first_reason": rpc.Reason(first)},
	}.Err()
}

// TooManyLoadsUnderWay returns RESOURCE_EXHAUSTED for a load when most others run. Loads whose
// callers are gone count, too.
func TooManyLoadsUnderWay(most int) error {
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.TooManyLoads, RetryAfter: RetryLater,
		Message:  fmt.Sprintf("%d loads are under way at this scheduler, the most that it follows: try again later", most),
		Metadata: map[string]string{"max_loads": fmt.Sprint(most)},
	}.Err()
}

// StillLoading returns UNAVAILABLE for a request that has waited for the load of its model for the
// longest time allowed. stage says how far the load is.
func StillLoading(model, stage string, waited time.Duration) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.ModelLoading, RetryAfter: RetryLater,
		Message: fmt.Sprintf("model %q is being loaded for this request (%s) and is not ready after %v, the longest time allowed: "+
			"the load continues, try again", model, stage, waited.Round(time.Millisecond)),
		Metadata: map[string]string{"model": model, "waited_ms": fmt.Sprint(waited.Milliseconds())},
	}.Err()
}

// TooManyAwaitLoad returns RESOURCE_EXHAUSTED for a request when most others wait for the same
// load.
func TooManyAwaitLoad(model string, most int) error {
	return rpc.Error{
		Code: codes.ResourceExhausted, Domain: Domain, Reason: reason.WorkersFull, RetryAfter: RetryLater,
		Message:  fmt.Sprintf("%d requests wait for model %q to be loaded, which is as many as may: try again later", most, model),
		Metadata: map[string]string{"model": model, "max_waiting": fmt.Sprint(most)},
	}.Err()
}

// OfLoad returns the status of a request that waited for a load that failed with err. If the load
// was cancelled or timed out, the request gets another code, because it was neither itself.
func OfLoad(err error) error {
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Canceled {
		return err
	}
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.ModelLoading, RetryAfter: RetryLater,
		Message: "the load of its model has not ended: " + status.Convert(err).Message(),
	}.Err()
}

// NotTriedAgain returns the status of a request for a model whose load failed and is not retried
// yet: the worker's own status, with the delay after which the load is retried.
func NotTriedAgain(failure error, after time.Duration) error {
	p := status.Convert(failure).Proto()
	p.Message = fmt.Sprintf("%s; its load is tried again in %v at the soonest", p.GetMessage(), after.Round(time.Millisecond))
	p.Details = slices.DeleteFunc(p.GetDetails(), func(d *anypb.Any) bool { return d.MessageIs(&errdetails.RetryInfo{}) })
	if retry, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil { // it always marshals
		p.Details = append(p.Details, retry)
	}
	return status.FromProto(p).Err()
}

// LoadEnded returns ABORTED for a load that an unload ended before it reached its next worker.
func LoadEnded(model string) error {
	return rpc.Error{
		Code: codes.Aborted, Domain: Domain, Reason: reason.LoadEnded,
		Message:  fmt.Sprintf("the load of %q was ended by an unload", model),
		Metadata: map[string]string{"model": model},
	}.Err()
}

// NotLoaded returns NOT_FOUND for a model that no worker has in memory.
func NotLoaded(model string) error {
	return rpc.Error{
		Code: codes.NotFound, Domain: Domain, Reason: reason.ModelNotLoaded,
		Message:  fmt.Sprintf("model %q is loaded on no worker, and none loads it", model),
		Metadata: map[string]string{"model": model},
	}.Err()
}

// Stopped returns UNAVAILABLE for a stream that ends because this scheduler stops.
func Stopped() error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.Stopping,
		Message: "this scheduler is stopping: connect to another one", RetryAfter: RetryLater,
	}.Err()
}

// Invalid returns INVALID_ARGUMENT with all violations.
func Invalid(message string, violations ...rpc.Violation) error {
	return rpc.Error{
		Code: codes.InvalidArgument, Domain: Domain, Reason: reason.InvalidArgument, Message: message, Violations: violations,
	}.Err()
}

// UnknownWorker returns NOT_FOUND for an id that no connected worker has.
func UnknownWorker(id string) error {
	return rpc.Error{
		Code: codes.NotFound, Domain: Domain, Reason: reason.UnknownWorker,
		Message:  fmt.Sprintf("no connected worker has the id %.64q: see WatchFleet for those there are", id),
		Metadata: map[string]string{"worker_id": id},
	}.Err()
}

// CannotDrain returns UNIMPLEMENTED for a worker of an earlier release.
func CannotDrain(workerID string) error {
	return rpc.Error{
		Code: codes.Unimplemented, Domain: Domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("worker %s is of a release that cannot drain by a call: stop it with SIGTERM, which drains it", workerID),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// LostDraining returns UNAVAILABLE for a request to drain or undrain a worker that was lost.
func LostDraining(workerID string, cause error) error {
	return rpc.Error{
		Code: codes.Unavailable, Domain: Domain, Reason: reason.WorkerLost,
		Message: fmt.Sprintf("worker %s was lost during the call to drain or undrain it (%v): see WatchFleet for its state",
			workerID, status.Convert(cause).Message()),
		Metadata: map[string]string{"worker_id": workerID},
	}.Err()
}

// callerReasons are the reasons with which a server refuses a caller: for its credentials, or
// because it exceeds its quota.
var callerReasons = []string{
	reason.CallerNotAllowed, reason.NoToken, reason.UnknownToken, reason.TokenExpired, reason.TokenRevoked, reason.RightMissing,
	reason.OtherTenant, reason.PriorityTooHigh, reason.TooManyRequests, reason.TooManyTokens, reason.TooManyStreams,
}

// RefusesScheduler reports whether a worker refuses this scheduler as its caller. The scheduler's
// own caller must not get that status, because it would take it as a statement about its own
// credentials.
func RefusesScheduler(err error) bool {
	return rpc.Domain(err) == rpc.WorkerDomain && slices.Contains(callerReasons, rpc.Reason(err))
}
