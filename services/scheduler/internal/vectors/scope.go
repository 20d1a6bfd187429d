package vectors

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// retryScope says where a call that failed may succeed.
type retryScope uint8

const (
	// scopeRequest: nowhere, because every worker would refuse the request.
	scopeRequest retryScope = iota
	// scopeWorker: on another worker; this one cannot serve now, whatever the request is.
	scopeWorker
	// scopeEither: perhaps on another worker; the request itself may have brought this one down.
	scopeEither
)

// scopesOfReasons overrides scopesOfCodes.
var scopesOfReasons = map[string]retryScope{
	reason.MessageTooLarge: scopeRequest, reason.SlowReader: scopeRequest, // RESOURCE_EXHAUSTED
	reason.CodebookDigestMismatch: scopeWorker, // FAILED_PRECONDITION: the codebook was replaced after the pick
	reason.NotOnThisDevice:        scopeWorker, // UNIMPLEMENTED
	reason.WorkerLost:             scopeEither, // UNAVAILABLE
	reason.Cancelled:              scopeWorker, // the worker stops; a caller's own cancellation is checked first
}

// scopesOfCodes has the codes that do not speak of the request alone.
var scopesOfCodes = map[codes.Code]retryScope{
	codes.Unavailable: scopeWorker, codes.ResourceExhausted: scopeWorker, codes.NotFound: scopeWorker,
	codes.Internal: scopeEither, codes.Unknown: scopeEither, codes.DataLoss: scopeEither, codes.Aborted: scopeEither,
}

// scopeOf returns the scope of a status.
func scopeOf(err error) retryScope {
	if scope, known := scopesOfReasons[rpc.Reason(err)]; known {
		return scope
	}
	return scopesOfCodes[status.Code(err)]
}

// ended turns the end of an attempt on a worker into a status: the caller's own cancellation, the
// loss of the worker, or the worker's status.
func ended(ctx, lost context.Context, id string, err error) error {
	switch domain := rpc.Domain(err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return statusOf(context.Cause(ctx))
	case rpcstatus.RefusesScheduler(err):
		return lostCall(id, err)
	case domain == rpc.WorkerDomain || domain == rpc.SchedulerDomain:
		return err
	case lost.Err() != nil:
		return lostCall(id, context.Cause(lost))
	}
	if code := status.Code(err); code == codes.Unavailable || code == codes.Internal || code == codes.Unknown || code == codes.Canceled {
		return lostCall(id, err)
	}
	return err // gRPC's own: a method that this worker does not have
}
