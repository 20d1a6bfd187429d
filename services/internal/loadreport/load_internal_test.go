package loadreport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALoadIsToldInTheWordsOfBalancers(t *testing.T) {
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

func TestRatesAreOfTheLastSeconds(t *testing.T) {
	var r rates
	at := time.Unix(0, 0)
	ended, wrong := r.add(sample{at: at})
	require.Zero(t, ended+wrong, "one sample is no rate")
	for i := range 100 { // ten a second, one of them wrong
		at = at.Add(every)
		ended, wrong = r.add(sample{at, int64(i + 1), int64(i+1) / 10})
	}
	require.InDelta(t, 10, ended, 1e-6)
	require.InDelta(t, 1, wrong, .2)
	for range 60 { // nothing more comes
		at = at.Add(every)
		ended, _ = r.add(sample{at, 100, 10})
	}
	require.Zero(t, ended, "what is older is forgotten")
	require.LessOrEqual(t, len(r.samples), most)
}
