package vectors

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

func TestEverySentinelHasItsStatus(t *testing.T) {
	want := map[error]struct {
		code   codes.Code
		reason string
		retry  bool
	}{
		errUnknownCodebook:   {codes.NotFound, reason.UnknownCodebook, false},
		errCodebookNotLoaded: {codes.NotFound, reason.CodebookNotLoaded, false},
		errCodebookFailed:    {codes.Unavailable, reason.CodebookOutOfService, false},
		errAmbiguousCodebook: {codes.FailedPrecondition, reason.AmbiguousCodebook, false},
		errCodebookDigest:    {codes.FailedPrecondition, reason.CodebookDigestMismatch, false},
		errNoTrainings:       {codes.Unavailable, reason.NoTrainings, false},
		errTrainingsFull:     {codes.ResourceExhausted, reason.TooManyTrainings, true},
		route.ErrNoWorker:    {codes.Unavailable, reason.NoWorker, true},
	}
	for _, row := range sentinels {
		require.Contains(t, want, row.Sentinel)
	}
	for sentinel, want := range want {
		t.Run(sentinel.Error(), func(t *testing.T) {
			for _, err := range []error{sentinel, fmt.Errorf("call 7: %w", sentinel),
				&route.Refusal{Err: sentinel, Message: "x", Numbers: map[string]string{"n": "1"}}} {
				got := statusOf(err)
				require.Equal(t, want.code, status.Code(got))
				require.Equal(t, want.reason, rpc.Reason(got))
				require.Equal(t, rpc.SchedulerDomain, rpc.Domain(got))
				require.Equal(t, want.retry, rpc.RetryAfter(got) > 0)
			}
		})
	}
}
