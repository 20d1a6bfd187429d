package ondemand

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

// name is a key whose flight is its first letter.
type name string

func (n name) Flight() string { return string(n[:1]) }

// load ends after a time, well or not.
type load struct {
	takes time.Duration
	err   error
}

func (l load) Wait() error {
	time.Sleep(l.takes)
	return l.err
}

// begin starts a load, counted in starts.
func (l load) begin(starts *int) func() (load, error) {
	return func() (load, error) {
		*starts++
		return l, nil
	}
}

var errGone = status.Error(codes.Unavailable, "gone")

func TestRequestsShareALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[name, load]
		starts, ended := 0, 0
		g.Ended = func(f *Flight[name, load], waiting int, took time.Duration, err error) {
			ended++
			require.Equal(t, name("a1"), f.Key)
			require.Equal(t, 100, waiting)
			require.Equal(t, time.Second, took)
			require.NoError(t, err)
		}
		var wait sync.WaitGroup
		for range 100 {
			f, err := g.Join("a1", 0, load{takes: time.Second}.begin(&starts))
			require.NoError(t, err)
			wait.Go(func() { require.NoError(t, f.Wait(t.Context(), nil)) })
		}
		wait.Wait()
		g.Close()
		require.Equal(t, 1, starts)
		require.Equal(t, 1, ended)
		require.EqualValues(t, 1, g.Generation())
		require.Empty(t, g.flights)
	})
}

func TestAKeyJoinsTheFlightOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[name, load]
		starts := 0
		f, err := g.Join("a1", 0, load{takes: time.Second, err: errGone}.begin(&starts))
		require.NoError(t, err)
		other, err := g.Join("a2", 0, load{}.begin(&starts))
		require.NoError(t, err)
		require.Same(t, f, other)
		require.Error(t, f.Wait(t.Context(), nil))
		require.Error(t, other.Wait(t.Context(), nil))
		_, err = g.Join("a1", 1, load{}.begin(&starts))
		require.ErrorContains(t, err, "its load is tried again in 1s")
		f, err = g.Join("a2", 1, load{}.begin(&starts))
		require.NoError(t, err, "the failure is of the other key")
		require.NoError(t, f.Wait(t.Context(), nil))
		require.Equal(t, 2, starts)
	})
}

func TestAStaleRefusalStartsNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[name, load]
		starts := 0
		f, err := g.Join("a", g.Generation(), load{}.begin(&starts))
		require.NoError(t, err)
		require.NoError(t, f.Wait(t.Context(), nil))
		_, err = g.Join("b", 0, load{}.begin(&starts))
		require.ErrorIs(t, err, ErrStale)
		_, err = g.Join("b", g.Generation(), func() (load, error) { return load{}, errGone })
		require.Equal(t, errGone, err, "start's own")
		require.Equal(t, 1, starts)
	})
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Group[name, load]{MaxWaiting: 2}
		starts := 0
		join := func() (*Flight[name, load], error) { return g.Join("a", 0, load{takes: time.Minute}.begin(&starts)) }
		first, err := join()
		require.NoError(t, err)
		second, err := join()
		require.NoError(t, err)
		_, err = join()
		require.ErrorIs(t, err, ErrCrowded)
		require.ErrorIs(t, first.Wait(t.Context(), time.After(time.Second)), ErrTimeout)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the caller left")
		cancel(left)
		require.ErrorIs(t, second.Wait(ctx, nil), left)
		require.Zero(t, first.waiting)
		third, err := join()
		require.NoError(t, err, "the load continues without them")
		require.NoError(t, third.Wait(t.Context(), nil))
		require.Equal(t, 1, starts)
	})
}

func TestFailuresPauseLongerEachTime(t *testing.T) {
	fs, now := failures[string]{}, time.Unix(0, 0)
	for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		want := time.Duration(seconds) * time.Second
		err := fs.add("a", errGone, now)
		require.Equal(t, want, rpc.RetryAfter(err))
		require.NoError(t, fs.recent("b", now))
		require.Error(t, fs.recent("a", now.Add(want-1)))
		now = now.Add(want)
		require.NoError(t, fs.recent("a", now))
	}
	asked := rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "X", Message: "no", RetryAfter: 7 * time.Second}.Err()
	require.Equal(t, 7*time.Second, rpc.RetryAfter(fs.add("a", asked, now)), "the worker's own delay counts")
}

func TestOldFailuresAreDropped(t *testing.T) {
	fs, now := failures[string]{}, time.Unix(0, 0)
	for i := range 1000 {
		_ = fs.add(strconv.Itoa(i), errGone, now)
		now = now.Add(time.Second)
	}
	require.Less(t, len(fs), 70)
}
