package retry

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

const (
	attempts   = 6
	firstPause = 100 * time.Millisecond // doubles with each attempt
)

// Do makes a call without side effects until it succeeds, fails for a reason that stays, or was
// attempted six times.
func Do[T any](ctx context.Context, call func(context.Context) (T, error)) (out T, err error) {
	for tries := (Attempts{}); ; {
		if out, err = call(ctx); err == nil || !Transient(err) || !tries.Wait(ctx, err) {
			return out, err
		}
	}
}

// Attempts counts the failures of a call. The zero value has none.
type Attempts struct{ failed int }

// Wait pauses before the next attempt, at least as long as the server asks for. It returns false if
// no attempt is left or ctx has ended.
func (a *Attempts) Wait(ctx context.Context, err error) bool {
	if a.failed++; a.failed == attempts || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(max(firstPause<<(a.failed-1), rpc.RetryAfter(err)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Transient reports whether a failure may be gone at the next attempt.
func Transient(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		return rpc.RetryAfter(err) > 0
	default:
		return false
	}
}
