package heap

import (
	"context"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestRoomForSmallAndLargeHeaps(t *testing.T) {
	const mb = 1 << 20
	for name, tc := range map[string]struct{ live, perSecond, room uint64 }{
		"nothing":                    {0, 0, 4 * mb},
		"calls that come alone":      {5 * mb, 2 * mb, 4 * mb},
		"a little more":              {5 * mb, 2*mb + 1, 8 * mb},
		"some streams":               {5 * mb, 10 * mb, 32 * mb},
		"twenty thousand tokens":     {5 * mb, 17 * mb, 48 * mb},
		"as fast as can be":          {5 * mb, 1<<64 - 1, 48 * mb},
		"as much alive as garbage":   {48 * mb, 30 * mb, 48 * mb},
		"ten thousand silent":        {304 * mb, 0, 36 * mb},
		"ten thousand":               {304 * mb, 30 * mb, 80 * mb},
		"all stalled":                {1648 * mb, 30 * mb, 248 * mb},
		"more than most, and silent": {1 << 50, 0, 4*mb + (1<<50-48*mb)/8},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.room, Room(tc.live, tc.perSecond)) })
	}
}

func TestRoomGrowsWithTheLiveHeap(t *testing.T) {
	for _, perSecond := range []uint64{0, 1 << 22, 1 << 30} {
		for live := uint64(1); live < 1<<45; live = live*5/4 + 1 {
			more := live*5/4 + 1
			require.LessOrEqual(t, Room(live, perSecond), Room(more, perSecond))
			require.LessOrEqual(t, percent(more, perSecond), max(percent(live, perSecond), 100/shareOfMore))
			require.Positive(t, percent(live, perSecond))
		}
	}
}

func TestRateGrowsAtOnceAndFallsSlowly(t *testing.T) {
	var r Rate
	require.Zero(t, r.Next(0, period))
	require.EqualValues(t, 10e6, r.Next(1e6, 100*time.Millisecond))
	require.EqualValues(t, 20e6, r.Next(4e6, 200*time.Millisecond))
	for range 5 {
		require.GreaterOrEqual(t, r.Next(0, period), uint64(10e6), "half a second later it may come again")
	}
	for range 25 {
		r.Next(0, period)
	}
	require.LessOrEqual(t, r.Next(0, period), uint64(2<<20), "three seconds later it is forgotten")
	require.Positive(t, r.Next(1, 0), "a clock that stands still divides nothing by zero")
}

func TestFirstCollectionIsInTime(t *testing.T) {
	require.LessOrEqual(t, percent(0, 0)*runtimeLeast/100, least, "before it nothing is known to be alive")
}

func TestSmallChangesAreIgnored(t *testing.T) {
	require.False(t, apart(100, 100))
	require.False(t, apart(109, 100))
	require.True(t, apart(112, 100))
	require.True(t, apart(88, 100))
	require.True(t, apart(1, 4800))
}

func TestFollowRestoresThePercentage(t *testing.T) {
	rpctest.NoLeaks(t)
	const own = 5000 // more than Follow sets for any live heap of this test
	require.Greater(t, own, percent(0, math.MaxUint64))
	before := debug.SetGCPercent(own)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx)
	}()
	require.Eventually(t, func() bool {
		set := debug.SetGCPercent(own)
		if set == own {
			return false
		}
		debug.SetGCPercent(set)
		return true
	}, time.Minute, time.Millisecond)
	cancel()
	<-done
	require.Equal(t, own, debug.SetGCPercent(own))
}
