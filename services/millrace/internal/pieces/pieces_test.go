package pieces_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/millrace/internal/pieces"
)

func TestResultsComeInOrderAndNoMoreThanAllowedRun(t *testing.T) {
	rpctest.NoLeaks(t)
	for _, inFlight := range []int{1, 2, 7, 64} {
		for _, count := range []int64{0, 1, 2, 100} {
			t.Run(fmt.Sprintf("%d of %d", inFlight, count), func(t *testing.T) {
				var running, most atomic.Int64
				var got []int64
				err := pieces.Do(t.Context(), count, inFlight, func(_ context.Context, i int64) (int64, error) {
					now := running.Add(1)
					for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
					}
					defer running.Add(-1)
					for range (i * 7919) % 13 * 1000 {
						running.Load()
					}
					return i * i, nil
				}, func(v int64) error {
					got = append(got, v)
					return nil
				})
				require.NoError(t, err)
				require.Len(t, got, int(count))
				for i, v := range got {
					require.Equal(t, int64(i)*int64(i), v)
				}
				require.LessOrEqual(t, most.Load(), int64(inFlight))
			})
		}
	}
}

func TestAllThatMayRunDo(t *testing.T) {
	rpctest.NoLeaks(t)
	const inFlight = 5
	met := make(chan struct{})
	var arrived atomic.Int64
	err := pieces.Do(t.Context(), 20, inFlight, func(ctx context.Context, _ int64) (int, error) {
		if arrived.Add(1) == inFlight {
			close(met)
		}
		select {
		case <-met: // passed only if five are there together
			return 0, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}, func(int) error { return nil })
	require.NoError(t, err)
}

func TestTheFirstErrorInOrderEndsTheWork(t *testing.T) {
	rpctest.NoLeaks(t)
	bad := errors.New("bad")
	later := make(chan struct{})
	var got []int64
	err := pieces.Do(t.Context(), 1000, 4, func(ctx context.Context, i int64) (int64, error) {
		switch i {
		case 3:
			<-later // fails behind piece 4
			return 0, bad
		case 4:
			close(later)
			return 0, errors.New("another")
		}
		return i, ctx.Err()
	}, func(v int64) error {
		got = append(got, v)
		return nil
	})
	require.ErrorIs(t, err, bad)
	require.Equal(t, []int64{0, 1, 2}, got)

	err = pieces.Do(t.Context(), 1000, 4, func(_ context.Context, i int64) (int64, error) { return i, nil },
		func(v int64) error {
			if v == 5 {
				return bad
			}
			return nil
		})
	require.ErrorIs(t, err, bad)
}

func TestTheCallersContextEndsTheWork(t *testing.T) {
	rpctest.NoLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := pieces.Do(ctx, 1000, 4, func(ctx context.Context, i int64) (int64, error) {
		if i == 10 {
			cancel()
		}
		return i, ctx.Err()
	}, func(int64) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}
