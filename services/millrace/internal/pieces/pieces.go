package pieces

import (
	"context"
	"sync"
)

// Do calls work for the pieces 0 to count-1, at most inFlight (1 or more) of them at once, and take with each result, in
// ascending order and on the caller's goroutine. The first error in that order ends it, cancels the context of the calls that
// run, and is returned when they have; no result after it is taken.
func Do[T any](ctx context.Context, count int64, inFlight int, work func(ctx context.Context, piece int64) (T, error),
	take func(result T) error,
) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := begin(ctx, &running, count, inFlight, work)
	for result := range begun {
		r := <-result
		if r.err != nil {
			return r.err
		}
		if err := take(r.value); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// result is the result of one piece.
type result[T any] struct {
	value T
	err   error
}

// begin starts pieces in order, one more whenever a result was received, and sends where each result will be. It ends early when
// ctx does.
func begin[T any](ctx context.Context, running *sync.WaitGroup, count int64, inFlight int,
	work func(context.Context, int64) (T, error),
) <-chan chan result[T] {
	begun := make(chan chan result[T], inFlight-1) // and one that is waited for
	running.Go(func() {
		defer close(begun)
		for i := range count {
			out := make(chan result[T], 1)
			select {
			case begun <- out:
			case <-ctx.Done():
				return
			}
			running.Go(func() {
				value, err := work(ctx, i)
				out <- result[T]{value, err}
			})
		}
	})
	return begun
}
