package model

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/internal/cputest"
)

// resident is how many bytes of this process are in memory, after a garbage collection.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(string(bytes.Fields(data)[1]))
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func TestHundredsOfLoadsLeaveNothingBehind(t *testing.T) {
	const warm, cycles = 20, 200
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 2}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := managerOf(t, device)
	var goroutines, memory int
	var before engine.DeviceInfo
	for i := range warm + cycles {
		if i == warm {
			before, err = device.Info()
			require.NoError(t, err)
			goroutines, memory = runtime.NumGoroutine(), resident(t)
		}
		inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
		require.NoError(t, err)
		if i%50 == 0 {
			agrees(t, m)
		}
		freed, err := m.Unload(t.Context(), "small", false)
		require.NoError(t, err)
		require.Equal(t, UnloadResult{Freed: inst.DeviceBytes}, freed)
	}
	after, err := device.Info()
	require.NoError(t, err)
	require.Equal(t, [engine.PurposeCount]uint64{}, after.BytesUsed)
	require.Zero(t, after.LiveBuffers)
	require.Equal(t, before.BytesTotal, after.BytesTotal)
	require.LessOrEqual(t, after.BytesPooled, before.BytesPooled+1<<20)
	require.Zero(t, m.RefusedFrees())
	const own = 5 // those of the test itself
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+own }, time.Minute, 10*time.Millisecond)
	// A load's weights, cache and workspace are some MiB: two hundred that stayed would be
	// hundreds.
	require.Less(t, resident(t), memory+48<<20)
}
