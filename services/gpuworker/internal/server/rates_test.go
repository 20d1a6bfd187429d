package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

func TestLoadIsTheSumOfAllModels(t *testing.T) {
	a := model.Status{Name: "a", State: model.Ready, Steps: batch.Stats{
		Running: 3, Waiting: 4, WaitingPrefillTokens: 5, Paused: 2, QueueAge: time.Second, FreeBlocks: 60, CachedBlocks: 20,
		TotalBlocks: 100, GeneratedTokens: 7, Cancelled: 1, Preempted: 9, Swapped: 8, CachedTokens: 30, RefusedSteps: 1, StepsAfterCancel: 2,
	}}
	b := a
	b.Name, b.Steps.QueueAge = "b", 3*time.Second
	failed := a
	failed.Name, failed.State = "failed", model.Failed
	var r rates
	r.sample([]model.Status{a, b, failed})
	load := r.load([]model.Status{a, b, failed})
	require.EqualValues(t, 9, load.GetRunning())
	require.EqualValues(t, 12, load.GetWaiting())
	require.EqualValues(t, 6, load.GetPaused())
	require.Equal(t, 3*time.Second, load.GetQueueAge().AsDuration(), "of the one that waits for longest")
	require.EqualValues(t, 120, load.GetFreeBlocks(), "the cache of a model that has failed is of no use")
	require.EqualValues(t, 40, load.GetCachedBlocks())
	require.EqualValues(t, 27, load.GetPreempted())
	require.EqualValues(t, 24, load.GetSwapped())
	require.EqualValues(t, 90, load.GetCachedTokens())
	require.LessOrEqual(t, load.GetCachedBlocks(), load.GetFreeBlocks())

	// The counters of an unloaded model stay in the sums; its current load ends.
	b.Steps.QueueAge, b.Steps.Swapped = 0, 10
	r.sample([]model.Status{b})
	load = r.load([]model.Status{b})
	require.Nil(t, load.GetQueueAge(), "no request waits")
	require.EqualValues(t, 26, load.GetSwapped())
	require.EqualValues(t, 90, load.GetCachedTokens())
	require.EqualValues(t, 2, load.GetPaused())
}

func TestLoadIsOfTheFullestGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		steps        batch.Stats
		free, cached uint64
	}{
		"without a window group": {batch.Stats{TotalBlocks: 100, FreeBlocks: 60, CachedBlocks: 20}, 60, 20},
		"a full window group":    {batch.Stats{TotalBlocks: 100, FreeBlocks: 60, CachedBlocks: 20, TotalWindowBlocks: 8}, 0, 0},
		"a fuller window group": {batch.Stats{
			TotalBlocks: 100, FreeBlocks: 60, CachedBlocks: 20, TotalWindowBlocks: 8, FreeWindowBlocks: 1, CachedWindowBlocks: 1,
		}, 12, 12},
		"a window group with more left": {batch.Stats{
			TotalBlocks: 100, FreeBlocks: 60, CachedBlocks: 20, TotalWindowBlocks: 8, FreeWindowBlocks: 7,
		}, 60, 20},
	} {
		t.Run(name, func(t *testing.T) {
			models := []model.Status{{Name: "m", State: model.Ready, Steps: tc.steps}}
			load := (&rates{}).load(models)
			require.EqualValues(t, 100, load.GetTotalBlocks())
			require.Equal(t, tc.free, load.GetFreeBlocks())
			require.Equal(t, tc.cached, load.GetCachedBlocks())
			require.EqualValues(t, 100-tc.free, loadOf(models, engine.DeviceInfo{}).HeldBlocks)
		})
	}
}
