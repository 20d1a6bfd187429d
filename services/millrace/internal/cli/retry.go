package cli

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

// A pure call is made again where another attempt may meet another worker, or the same one when it has room.
const (
	attempts   = 6
	firstPause = 100 * time.Millisecond // then twice as long each time
)

// again makes a pure call until it succeeds, fails for a reason that stays, or was tried often enough.
func again[T any](ctx context.Context, call func(context.Context) (T, error)) (out T, err error) {
	for tries := (retries{}); ; {
		if out, err = call(ctx); err == nil || !passing(err) || !tries.wait(ctx, err) {
			return out, err
		}
	}
}

// retries counts the attempts at something that failed.
type retries struct{ failed int }

// wait lets some time pass, as much as the server wants at least; false means that it was tried often enough or ctx has ended.
func (r *retries) wait(ctx context.Context, err error) bool {
	if r.failed++; r.failed == attempts || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(max(firstPause<<(r.failed-1), rpc.RetryAfter(err)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// passing says whether a failure may be gone the next time.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		return rpc.RetryAfter(err) > 0
	default:
		return false
	}
}
