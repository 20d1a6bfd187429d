package rpcstatus_test

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
	"github.com/millrace/millrace/services/scheduler/internal/placement"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

func TestEverySentinelHasAStatus(t *testing.T) {
	for sentinel, want := range map[error]struct {
		code   codes.Code
		reason string
		retry  bool
	}{
		route.ErrFleetUnknown:     {codes.Unavailable, reason.FleetUnknown, true},
		route.ErrNoWorker:         {codes.Unavailable, reason.NoWorker, true},
		route.ErrUnknownModel:     {codes.NotFound, reason.UnknownModel, false},
		route.ErrModelNotLoaded:   {codes.FailedPrecondition, reason.ModelNotLoaded, false},
		route.ErrAmbiguousModel:   {codes.FailedPrecondition, reason.AmbiguousModel, false},
		route.ErrDigestMismatch:   {codes.FailedPrecondition, reason.DigestMismatch, false},
		route.ErrClassMismatch:    {codes.FailedPrecondition, reason.ClassMismatch, false},
		route.ErrWorkersFull:      {codes.ResourceExhausted, reason.WorkersFull, true},
		route.ErrTooLarge:         {codes.ResourceExhausted, reason.WorkersFull, true},
		admission.ErrDisplaced:    {codes.ResourceExhausted, reason.Displaced, true},
		admission.ErrQueueTimeout: {codes.ResourceExhausted, reason.QueueTimeout, true},
		admission.ErrTooLate:      {codes.ResourceExhausted, reason.TooLate, true},
		placement.ErrNowhere:      {codes.NotFound, reason.UnknownModel, false},
		placement.ErrTooFew:       {codes.ResourceExhausted, reason.TooFewWorkers, false},
		context.DeadlineExceeded:  {codes.DeadlineExceeded, reason.DeadlineExceeded, false},
		context.Canceled:          {codes.Canceled, reason.Cancelled, false},
	} {
		t.Run(sentinel.Error(), func(t *testing.T) {
			for _, err := range []error{sentinel, fmt.Errorf("route request 7: %w", sentinel),
				&route.Refusal{Err: sentinel, Message: "x", Numbers: map[string]string{"n": "1"}}} {
				got := rpcstatus.Of(err)
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

func TestRefusalSetsTheRetryDelay(t *testing.T) {
	err := rpcstatus.Of(&route.Refusal{Err: route.ErrWorkersFull, Message: "x", RetryMillis: 7000})
	require.Equal(t, 7*time.Second, rpc.RetryAfter(err))
}

func TestStatusPassesUnchanged(t *testing.T) {
	worker := rpc.Error{Code: codes.DataLoss, Domain: rpc.WorkerDomain, Reason: "BITS", Message: "flipped"}.Err()
	require.Equal(t, worker, rpcstatus.Of(worker))
	require.NoError(t, rpcstatus.Of(nil))
	require.Equal(t, reason.Internal, rpc.Reason(rpcstatus.Of(errors.New("strange"))))
}

func TestUnresumedSaysWhatBrokeAndWhy(t *testing.T) {
	err := rpcstatus.Unresumed("w1", 7, "worker w1 was lost", "no other worker took it within 30s")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	require.Equal(t, map[string]string{"worker_id": "w1", "tokens_relayed": "7"}, rpc.Info(err).GetMetadata())
	require.Contains(t, status.Convert(err).Message(), "worker w1 was lost; no other worker took it within 30s")
}
