package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwnMemoryLeavesMappedFilesOut(t *testing.T) {
	require.EqualValues(t, 5<<10, ownMemory("VmRSS:\t 20 kB\nRssAnon:\t 2 kB\nRssFile:\t 15 kB\nRssShmem:\t 3 kB\n"))
	require.Zero(t, ownMemory(""))
	require.Positive(t, OwnMemory())
}

func TestStolenTimeIsTheEighth(t *testing.T) {
	require.EqualValues(t, 8, stolen("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 9 9 9 9 9 9 9 9 9 9\n"))
	require.Zero(t, stolen("cpu  1 2 3 4\n"))
	require.Zero(t, stolen(""))
	share := WatchStolen().Share()
	require.GreaterOrEqual(t, share, 0.0)
	require.LessOrEqual(t, share, 1.0)
}

func TestOwnProcessorTimeGrowsWithWork(t *testing.T) {
	before := OwnCPU()
	for OwnCPU() == before { // the test's timeout is the guard
	}
	require.Greater(t, OwnCPU(), before)
}
