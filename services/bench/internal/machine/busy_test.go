package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessorsAreBusyUnlessTheyAreIdleOrWaitForADisk(t *testing.T) {
	idle, all := processorTicks("cpu  10 1 5 60 4 2 3 15 7 0\ncpu0 1 1 1 1\n")
	require.EqualValues(t, 64, idle)
	require.EqualValues(t, 100, all, "a guest's time is in the user's already")
	require.InDelta(t, 0.75, busyShare(64, 100, 64+50, 100+200), 1e-9)
	require.Zero(t, busyShare(64, 100, 64, 100), "no time has passed")
	require.Zero(t, busyShare(64, 100, 3, 200), "counted back")
	idle, all = processorTicks("")
	require.Zero(t, idle+all)
}

func TestABusyMachineIsSeen(t *testing.T) {
	share := WatchBusy().Share()
	require.GreaterOrEqual(t, share, 0.0)
	require.LessOrEqual(t, share, 1.0)
}
