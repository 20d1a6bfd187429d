package fairsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func acquire(t *testing.T, s *Semaphore, tenant string, size int) (release func()) {
	t.Helper()
	release, err := s.Acquire(t.Context(), tenant, size)
	require.NoError(t, err)
	return release
}

// queue starts waiting calls one after another. They send their names to got when they are
// admitted.
func queue(t *testing.T, s *Semaphore, got chan<- string, tenant string, size, count int) {
	t.Helper()
	for range count {
		go func() {
			release, err := s.Acquire(t.Context(), tenant, size)
			if err != nil {
				tenant = err.Error()
			} else {
				defer release()
			}
			got <- tenant
		}()
		synctest.Wait()
	}
}

func TestSmallWorkDoesNotWaitForLarge(t *testing.T) {
	s := New(Config{Small: 1, Large: 1, LargeFrom: 100, LargeBytes: 1000})
	release := acquire(t, s, "a", 100)
	defer release()
	acquire(t, s, "a", 99)()
}

func TestWaitersAreServedByTenant(t *testing.T) {
	// Six texts of one tenant wait. That of another tenant, which arrives last, is served after the
	// first of them.
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Small: 1, Large: 1, LargeFrom: 1000})
		release := acquire(t, s, "crowd", 10)
		got := make(chan string, 7)
		queue(t, s, got, "crowd", 10, 6)
		queue(t, s, got, "alone", 10, 1)
		require.Equal(t, 7, s.Waiting())
		release()
		var order []string
		for range 7 {
			order = append(order, <-got)
		}
		require.Contains(t, order[:2], "alone", "%v", order)
	})
}

func TestLargeWorkIsBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Small: 1, Large: 4, LargeFrom: 100, LargeBytes: 1000})
		first := acquire(t, s, "a", 600)
		second := acquire(t, s, "b", 400)
		third := make(chan func(), 1)
		go func() {
			release, err := s.Acquire(t.Context(), "c", 5000) // above the bound: it runs alone
			if err == nil {
				third <- release
			}
		}()
		synctest.Wait()
		first()
		synctest.Wait()
		require.Equal(t, 1, s.Waiting())
		second()
		release := <-third
		release()
		require.Zero(t, s.mu.large.usedBytes)
	})
}

func TestCancelledWaiterHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Small: 1, Large: 2, LargeFrom: 100, LargeBytes: 1000})
		release := acquire(t, s, "a", 900)
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() {
			_, err := s.Acquire(ctx, "b", 900)
			failed <- err
		}()
		synctest.Wait()
		got := make(chan string, 1)
		queue(t, s, got, "c", 100, 1) // it fits, and waits for earlier ones
		require.Equal(t, 2, s.Waiting())
		cancel(gone)
		require.ErrorIs(t, <-failed, gone)
		require.Equal(t, "c", <-got)
		release()
		_, err := s.Acquire(ctx, "b", 900)
		require.ErrorIs(t, err, gone)
		require.Zero(t, s.mu.large.usedSlots)
	})
}
