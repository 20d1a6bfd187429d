package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/place"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

func TestEverySentinelHasItsStatusBareAndWrapped(t *testing.T) {
	for sentinel, want := range map[error]struct {
		code   codes.Code
		reason string
		retry  bool
	}{
		route.ErrFleetUnknown:      {codes.Unavailable, reason.FleetUnknown, true},
		route.ErrNoWorker:          {codes.Unavailable, reason.NoWorker, true},
		route.ErrUnknownModel:      {codes.NotFound, reason.UnknownModel, false},
		route.ErrModelNotLoaded:    {codes.FailedPrecondition, reason.ModelNotLoaded, false},
		route.ErrAmbiguousModel:    {codes.FailedPrecondition, reason.AmbiguousModel, false},
		route.ErrDigestMismatch:    {codes.FailedPrecondition, reason.DigestMismatch, false},
		route.ErrClassMismatch:     {codes.FailedPrecondition, reason.ClassMismatch, false},
		route.ErrWorkersFull:       {codes.ResourceExhausted, reason.WorkersFull, true},
		route.ErrTight:             {codes.ResourceExhausted, reason.WorkersFull, true},
		route.ErrUnknownCodebook:   {codes.NotFound, reason.UnknownCodebook, false},
		route.ErrCodebookNotLoaded: {codes.NotFound, reason.CodebookNotLoaded, false},
		route.ErrCodebookFailed:    {codes.Unavailable, reason.CodebookOutOfService, false},
		route.ErrAmbiguousCodebook: {codes.FailedPrecondition, reason.AmbiguousCodebook, false},
		route.ErrCodebookDigest:    {codes.FailedPrecondition, reason.CodebookDigestMismatch, false},
		route.ErrNoTrainings:       {codes.Unavailable, reason.NoTrainings, false},
		route.ErrTrainingsFull:     {codes.ResourceExhausted, reason.TooManyTrainings, true},
		admission.ErrDisplaced:     {codes.ResourceExhausted, reason.Displaced, true},
		admission.ErrQueueTimeout:  {codes.ResourceExhausted, reason.QueueTimeout, true},
		admission.ErrTooLate:       {codes.ResourceExhausted, reason.TooLate, true},
		place.ErrNowhere:           {codes.NotFound, reason.UnknownModel, false},
		place.ErrTooFew:            {codes.ResourceExhausted, reason.TooFewWorkers, false},
		context.DeadlineExceeded:   {codes.DeadlineExceeded, reason.DeadlineExceeded, false},
		context.Canceled:           {codes.Canceled, reason.Cancelled, false},
	} {
		t.Run(sentinel.Error(), func(t *testing.T) {
			for _, err := range []error{sentinel, fmt.Errorf("route request 7: %w", sentinel),
				&route.Refusal{Err: sentinel, Message: "x", Numbers: map[string]string{"n": "1"}}} {
				got := fault.Status(err)
				require.Equal(t, want.code, status.Code(got))
				require.Equal(t, want.reason, rpc.Reason(got))
				require.Equal(t, rpc.SchedulerDomain, rpc.Domain(got))
				require.Equal(t, want.retry, rpc.RetryAfter(got) > 0)
				var refusal *route.Refusal
				if errors.As(err, &refusal) {
					require.Equal(t, refusal.Numbers, rpc.Info(got).GetMetadata())
				}
			}
		})
	}
}

func TestARefusalThatKnowsWhenToComeAgainSaysSo(t *testing.T) {
	err := fault.Status(&route.Refusal{Err: route.ErrWorkersFull, Message: "x", RetryMillis: 7000})
	require.Equal(t, 7*time.Second, rpc.RetryAfter(err))
}

func TestAStatusPassesUnchangedAndAStrangeErrorIsInternal(t *testing.T) {
	worker := rpc.Fault{Code: codes.DataLoss, Domain: rpc.WorkerDomain, Reason: "BITS", Message: "flipped"}.Err()
	require.Equal(t, worker, fault.Status(worker))
	require.NoError(t, fault.Status(nil))
	require.Equal(t, reason.Internal, rpc.Reason(fault.Status(errors.New("strange"))))
}

func TestAStreamThatNobodyGoesOnWithSaysWhatBrokeItAndWhy(t *testing.T) {
	err := fault.Unresumed("w1", 7, "worker w1 was lost", "no other worker took it within 30s")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	require.Equal(t, map[string]string{"worker_id": "w1", "tokens_relayed": "7"}, rpc.Info(err).GetMetadata())
	require.Contains(t, status.Convert(err).Message(), "worker w1 was lost; no other worker took it within 30s")
}
