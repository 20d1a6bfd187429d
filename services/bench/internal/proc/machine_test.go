package proc

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessorName(t *testing.T) {
	for name, tc := range map[string]struct{ cpuinfo, want string }{
		"amd64":   {"processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon: 2.5 GHz\n", "Xeon: 2.5 GHz"},
		"arm64":   {"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "0xd0c"},
		"nothing": {"", "unknown processor"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, processor(tc.cpuinfo)) })
	}
}

func TestMachineMemoryIsTheTotal(t *testing.T) {
	require.Equal(t, "24.0 GiB", memory("MemTotal:       25165824 kB\nMemFree: 1 kB\n"))
	require.Equal(t, "unknown memory", memory("MemFree: 1 kB\n"))
}

func TestCacheSizeHasUnits(t *testing.T) {
	for text, want := range map[string]uint64{"36608K\n": 36608 << 10, "32M": 32 << 20, "1G": 1 << 30, "": 0, "many": 0, "7X": 0} {
		require.Equal(t, want, cacheSize(text), "%q", text)
	}
}

func TestThisMachineFillsEveryField(t *testing.T) {
	facts := ThisMachine()
	text, err := json.Marshal(facts)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	for name, value := range fields {
		require.NotZero(t, value, name)
		require.NotEqual(t, "unknown", value, name)
	}
	require.Contains(t, facts.String(), facts.Processor)
}

func TestBusyExcludesIdleAndDiskWait(t *testing.T) {
	idle, all := processorTicks("cpu  10 1 5 60 4 2 3 15 7 0\ncpu0 1 1 1 1\n")
	require.EqualValues(t, 64, idle)
	require.EqualValues(t, 100, all, "a guest's time is in the user's already")
	require.InDelta(t, 0.75, busyShare(64, 100, 64+50, 100+200), 1e-9)
	require.Zero(t, busyShare(64, 100, 64, 100), "no time has passed")
	require.Zero(t, busyShare(64, 100, 3, 200), "counted back")
	idle, all = processorTicks("")
	require.Zero(t, idle+all)
}

func TestBusyShareIsAShare(t *testing.T) {
	share := WatchBusy().Share()
	require.GreaterOrEqual(t, share, 0.0)
	require.LessOrEqual(t, share, 1.0)
}

func TestOwnMemoryExcludesMappedFiles(t *testing.T) {
	require.EqualValues(t, 5<<10, ownMemory("VmRSS:\t 20 kB\nRssAnon:\t 2 kB\nRssFile:\t 15 kB\nRssShmem:\t 3 kB\n"))
	require.Zero(t, ownMemory(""))
	require.Positive(t, OwnMemory())
}

func TestStolenReadsTheEighthColumn(t *testing.T) {
	require.EqualValues(t, 8, stolen("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 9 9 9 9 9 9 9 9 9 9\n"))
	require.Zero(t, stolen("cpu  1 2 3 4\n"))
	require.Zero(t, stolen(""))
	share := WatchStolen().Share()
	require.GreaterOrEqual(t, share, 0.0)
	require.LessOrEqual(t, share, 1.0)
}

func TestOwnCPUGrowsWithWork(t *testing.T) {
	before := OwnCPU()
	for OwnCPU() == before { // the test's timeout is the guard
	}
	require.Greater(t, OwnCPU(), before)
}
