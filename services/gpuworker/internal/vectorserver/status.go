package vectorserver

import (
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// statuses has every sentinel of package vectors; the first that matches wins.
var statuses = server.Statuses{Details: details, Rows: []server.Row{
	{Sentinel: vectors.ErrStopped, Code: codes.Unavailable, Reason: reason.WorkerStopping},
	{Sentinel: vectors.ErrName, Code: codes.InvalidArgument, Reason: reason.BadCodebookName},
	{Sentinel: vectors.ErrExists, Code: codes.AlreadyExists, Reason: reason.CodebookExists},
	{Sentinel: vectors.ErrNotFound, Code: codes.NotFound, Reason: reason.UnknownCodebook},
	{Sentinel: vectors.ErrNotLoaded, Code: codes.NotFound, Reason: reason.CodebookNotLoaded},
	{Sentinel: vectors.ErrDigest, Code: codes.FailedPrecondition, Reason: reason.CodebookDigestMismatch},
	{Sentinel: vectors.ErrFailed, Code: codes.Unavailable, Reason: reason.CodebookOutOfService},
	{Sentinel: vectors.ErrFile, Code: codes.FailedPrecondition, Reason: reason.InvalidCodebookFile},
	{Sentinel: vectors.ErrWrite, Code: codes.Internal, Reason: reason.CodebookNotWritten},
	{Sentinel: vectors.ErrCorrupt, Code: codes.DataLoss, Reason: reason.ResidentCodebookDiffers},
	{Sentinel: vectors.ErrNoFit, Code: codes.ResourceExhausted, Reason: reason.DoesNotFit},
	{Sentinel: vectors.ErrNoTrainings, Code: codes.Unavailable, Reason: reason.NoTrainings},
	{Sentinel: vectors.ErrTooMany, Code: codes.ResourceExhausted, Reason: reason.TooManyTrainings, Retry: 5 * time.Second},
	{Sentinel: vectors.ErrInput, Code: codes.InvalidArgument, Reason: reason.BadTrainingInput},
	{Sentinel: vectors.ErrCheckpoint, Code: codes.FailedPrecondition, Reason: reason.CheckpointMismatch},
}}

// statusOf returns the status of an error. A status is returned as it is.
func statusOf(err error) error { return server.StatusOf(err, statuses) }

// details returns the numbers of a training or codebook that does not fit, or the field that is
// wrong.
func details(err error) (map[string]string, []rpc.Violation) {
	var fit *vectors.FitError
	var in *vectors.InputError
	switch {
	case errors.As(err, &fit):
		number := func(n uint64) string { return strconv.FormatUint(n, 10) }
		return map[string]string{
			"needed_bytes": number(fit.Needed), "free_bytes": number(fit.Free), "spool_bytes": number(fit.Spool),
			"free_spool_bytes": number(fit.FreeSpool), "host_bytes": number(fit.Host), "free_host_bytes": number(fit.FreeHost),
		}, nil
	case errors.As(err, &in):
		return nil, []rpc.Violation{{Field: in.Field, Description: in.Problem}}
	}
	return nil, nil
}
