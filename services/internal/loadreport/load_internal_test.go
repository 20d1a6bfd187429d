package loadreport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLoadMetrics(t *testing.T) {
	for name, tc := range map[string]struct {
		load               Load
		cache, application float64
		memory             float64
	}{
		"an idle server":               {Load{KVBlocks: 10, Places: 4}, 0, 0, -1},
		"one that is half full":        {Load{KVBlocks: 10, HeldBlocks: 5, Places: 4, Running: 4}, .5, .5, -1},
		"one that is full":             {Load{KVBlocks: 10, HeldBlocks: 10, Places: 4, Running: 4}, 1, 1, -1},
		"one before which others wait": {Load{KVBlocks: 10, HeldBlocks: 10, Places: 4, Running: 4, Waiting: 6}, 1, 2.5, -1},
		"one that has no model":        {Load{Waiting: 2}, 0, 2, -1},
		"a device":                     {Load{MemoryUsed: 3, MemoryLimit: 4}, 0, 0, .75},
		"a device beyond its limit":    {Load{MemoryUsed: 9, MemoryLimit: 4}, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := tc.load.metrics()
			require.InDelta(t, tc.cache, m.Utilization[cacheUsage], 1e-9)
			require.InDelta(t, tc.application, m.AppUtilization, 1e-9)
			require.InDelta(t, tc.memory, m.MemUtilization, 1e-9)
			require.InDelta(t, -1, m.CPUUtilization, 0, "nobody measures it")
			require.InDelta(t, float64(tc.load.Waiting), m.NamedMetrics[waiting], 0)
			require.InDelta(t, float64(tc.load.Running), m.NamedMetrics[running], 0)
		})
	}
}

func TestRatesCoverTheLastSeconds(t *testing.T) {
	var r rates
	now := time.Unix(0, 0)
	ended, failed := r.add(sample{time: now})
	require.Zero(t, ended+failed, "one sample is no rate")
	for i := range 100 { // ten a second, one of them failed
		now = now.Add(maxAge)
		ended, failed = r.add(sample{now, int64(i + 1), int64(i+1) / 10})
	}
	require.InDelta(t, 10, ended, 1e-6)
	require.InDelta(t, 1, failed, .2)
	for range 60 { // no more follow
		now = now.Add(maxAge)
		ended, _ = r.add(sample{now, 100, 10})
	}
	require.Zero(t, ended, "what is older is forgotten")
	require.LessOrEqual(t, len(r.samples), maxSamples)
}
