package auth

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// took makes a call that ends at once.
func took(t *testing.T, a *account, l Limits, now time.Time) {
	t.Helper()
	over, after := a.acquire(l, now)
	require.Equal(t, enough, over)
	require.Zero(t, after)
	a.release()
}

func TestRequestQuotaRefillsEvenly(t *testing.T) {
	// A minute's requests may arrive at once.
	a, l := &account{}, Limits{RequestsPerMinute: 6}
	for range 6 {
		took(t, a, l, noon)
	}
	for range 3 { // a refused call costs nothing
		over, after := a.acquire(l, noon)
		require.Equal(t, tooManyRequests, over)
		require.Equal(t, 10*time.Second, after)
	}
	over, after := a.acquire(l, noon.Add(4*time.Second))
	require.Equal(t, tooManyRequests, over)
	require.InDelta(t, 6*time.Second, after, 10, "as far as fractions go")
	took(t, a, l, noon.Add(10*time.Second))
	over, _ = a.acquire(l, noon.Add(10*time.Second))
	require.Equal(t, tooManyRequests, over)
	for range 6 { // at most a minute's worth accumulates
		took(t, a, l, noon.Add(time.Hour))
	}
	over, _ = a.acquire(l, noon.Add(time.Hour))
	require.Equal(t, tooManyRequests, over)
	require.Equal(t, Used{Calls: 13, Refused: 6}, a.usage())
}

func TestTokenDebtIsRepaidFirst(t *testing.T) {
	a, l := &account{}, Limits{TokensPerMinute: 60}
	over, _ := a.acquire(l, noon)
	require.Equal(t, enough, over)
	a.addTokens(30)
	took(t, a, l, noon) // half is left
	a.addTokens(150)    // by the first call, which is not ended for it
	over, after := a.acquire(l, noon)
	require.Equal(t, tooManyTokens, over)
	require.Equal(t, 121*time.Second, after, "it owes 120, and a call needs one")
	over, after = a.acquire(l, noon.Add(100*time.Second))
	require.Equal(t, tooManyTokens, over)
	require.Equal(t, 21*time.Second, after)
	took(t, a, l, noon.Add(121*time.Second))
	require.Equal(t, int64(180), a.usage().Tokens)
	require.Equal(t, 1, a.usage().UnderWay)
}

func TestStreamQuotaCountsRunningCalls(t *testing.T) {
	a, l := &account{}, Limits{Streams: 2, RequestsPerMinute: 3}
	for range 2 {
		over, _ := a.acquire(l, noon)
		require.Equal(t, enough, over)
	}
	for range 5 {
		over, after := a.acquire(l, noon)
		require.Equal(t, tooManyStreams, over, "and it costs no request")
		require.Zero(t, after)
	}
	a.release()
	over, _ := a.acquire(l, noon)
	require.Equal(t, enough, over)
}

func TestChangedLimitsApplyToTheNextCall(t *testing.T) {
	a := &account{}
	took(t, a, Limits{RequestsPerMinute: 1, TokensPerMinute: 10}, noon)
	a.addTokens(100)
	over, _ := a.acquire(Limits{RequestsPerMinute: 1, TokensPerMinute: 10}, noon)
	require.Equal(t, tooManyTokens, over)
	took(t, a, Limits{}, noon)
	over, after := a.acquire(Limits{RequestsPerMinute: 60}, noon)
	require.Equal(t, enough, over, "a bound that is new begins whole")
	require.Zero(t, after)
	a.release()
	for range 59 {
		took(t, a, Limits{RequestsPerMinute: 60}, noon)
	}
	over, after = a.acquire(Limits{RequestsPerMinute: 120}, noon)
	require.Equal(t, tooManyRequests, over)
	require.Equal(t, 500*time.Millisecond, after)
}

func TestAccountIsSafeForConcurrentUse(t *testing.T) {
	a, l := &account{}, Limits{Streams: 4, TokensPerMinute: 1 << 30}
	var calls sync.WaitGroup
	var most, begun sync.Map
	for i := range 16 {
		calls.Go(func() {
			for j := range 200 {
				if over, _ := a.acquire(l, noon); over != enough {
					continue
				}
				begun.Store([2]int{i, j}, true)
				most.Store(a.usage().UnderWay <= 4, true)
				a.addTokens(3)
				a.release()
			}
		})
	}
	calls.Wait()
	_, tooMany := most.Load(false)
	require.False(t, tooMany)
	n := int64(0)
	begun.Range(func(any, any) bool { n++; return true })
	u := a.usage()
	require.Equal(t, Used{Calls: n, Refused: 3200 - n, Tokens: 3 * n}, u)
}
