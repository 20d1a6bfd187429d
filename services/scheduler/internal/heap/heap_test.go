package heap

import (
	"context"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestASmallHeapIsCollectedSeldomAndALargeOneKeptClose(t *testing.T) {
	const mb = 1 << 20
	for name, tc := range map[string]struct{ live, room uint64 }{
		"nothing":          {0, 48 * mb},
		"few streams":      {5 * mb, 48 * mb},
		"as much as least": {48 * mb, 48 * mb},
		"ten thousand":     {304 * mb, 80 * mb},
		"all stalled":      {1648 * mb, 248 * mb},
		"more than most":   {1 << 50, 48*mb + (1<<50-48*mb)/8},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.room, Room(tc.live)) })
	}
}

func TestMoreAliveNeverMeansLessRoomNorALargerShare(t *testing.T) {
	for live := uint64(1); live < 1<<45; live = live*5/4 + 1 {
		more := live*5/4 + 1
		require.LessOrEqual(t, Room(live), Room(more))
		require.GreaterOrEqual(t, percent(live), percent(more))
		require.Positive(t, percent(live))
	}
}

func TestTheFirstCollectionComesInTime(t *testing.T) {
	require.LessOrEqual(t, percent(0)*runtimeLeast/100, least, "before it nothing is known to be alive")
}

func TestOnlyAChangeThatMattersStopsTheProgram(t *testing.T) {
	require.False(t, apart(100, 100))
	require.False(t, apart(109, 100))
	require.True(t, apart(112, 100))
	require.True(t, apart(88, 100))
	require.True(t, apart(1, 4800))
}

func TestTheRuntimeGetsItsOwnPercentageBack(t *testing.T) {
	rpctest.NoLeaks(t)
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx)
	}()
	require.Eventually(t, func() bool {
		set := debug.SetGCPercent(77)
		if set == 77 {
			return false
		}
		debug.SetGCPercent(set)
		return true
	}, 10*time.Second, time.Millisecond)
	cancel()
	<-done
	require.Equal(t, 77, debug.SetGCPercent(77))
}
