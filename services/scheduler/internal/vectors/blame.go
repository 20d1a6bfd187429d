package vectors

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// blame says of whom a failed attempt speaks.
type blame uint8

const (
	// request: every worker would say so.
	request blame = iota
	// worker: this one cannot now, whatever the request is.
	worker
	// either: the worker failed, and the request may be what it failed at.
	either
)

// blames are those of reasons whose codes say otherwise.
var blames = map[string]blame{
	reason.MessageTooLarge: request, reason.SlowReader: request, // RESOURCE_EXHAUSTED
	reason.CodebookDigestMismatch: worker, // FAILED_PRECONDITION: it has been replaced since it was chosen
	reason.NotOnThisDevice:        worker, // UNIMPLEMENTED
	reason.WorkerLost:             either, // UNAVAILABLE
	reason.Cancelled:              worker, // of a worker that stops: the caller's own cancelling is seen before its word is
}

// blameOf is of whom a status speaks.
func blameOf(err error) blame {
	if of, known := blames[rpc.Reason(err)]; known {
		return of
	}
	return blamesOfCodes[status.Code(err)]
}

// blamesOfCodes are those that do not speak of the request.
var blamesOfCodes = map[codes.Code]blame{
	codes.Unavailable: worker, codes.ResourceExhausted: worker, codes.NotFound: worker,
	codes.Internal: either, codes.Unknown: either, codes.DataLoss: either, codes.Aborted: either,
}

// ended makes a status of how an attempt on a worker ended: the caller's own end, a worker that went away, or the worker's word.
func ended(ctx, lost context.Context, id string, err error) error {
	switch domain := rpc.Domain(err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fault.Status(context.Cause(ctx))
	case fault.RefusesScheduler(err):
		return fault.LostVectors(id, err)
	case domain == rpc.WorkerDomain || domain == rpc.SchedulerDomain:
		return err
	case lost.Err() != nil:
		return fault.LostVectors(id, context.Cause(lost))
	}
	if code := status.Code(err); code == codes.Unavailable || code == codes.Internal || code == codes.Unknown || code == codes.Canceled {
		return fault.LostVectors(id, err)
	}
	return err // gRPC's own: a method that this worker does not have
}
