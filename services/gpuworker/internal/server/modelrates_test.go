package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
)

// clockwork samples one model once a pulse.
type clockwork struct {
	rates modelRates
	now   time.Time
	model model.Status
}

func (c *clockwork) pulses(n int, generated, prefilled uint64, waiting int64) (decode, prefill float64) {
	c.model.Steps.WaitingPrefillTokens = waiting
	for range n {
		c.now = c.now.Add(pulse)
		c.model.Steps.GeneratedTokens += generated
		c.model.Steps.PrefilledTokens += prefilled
		c.rates.sample(c.now, []model.Status{c.model})
	}
	l := c.rates.loads([]model.Status{c.model})[0]
	return l.GetTokensPerSecond(), l.GetPrefillTokensPerSecond()
}

func TestModelRatesAreOverTheLastSeconds(t *testing.T) {
	c := &clockwork{rates: modelRates{}, now: time.Unix(0, 0), model: model.Status{Name: "m", State: model.Ready}}
	decode, prefill := c.pulses(1, 0, 0, 0)
	require.Zero(t, decode)
	require.Zero(t, prefill, "nothing is known of prompts before the first")

	decode, prefill = c.pulses(30, 10, 50, 500)
	require.InDelta(t, 100, decode, 1e-9)
	require.InDelta(t, 500, prefill, 1e-9)

	decode, prefill = c.pulses(30, 20, 0, 0)
	require.InDelta(t, 200, decode, 1e-9)
	require.InDelta(t, 500, prefill, 1e-9, "no prompt came: prompts are as fast as they were")

	decode, _ = c.pulses(30, 0, 0, 0)
	require.Zero(t, decode, "nothing is generated now")

	// A step is longer than a pulse: its tokens come at its end, and prompts wait until then.
	for range 20 {
		_, _ = c.pulses(3, 0, 0, 100)
		_, prefill = c.pulses(1, 0, 80, 100)
	}
	require.InDelta(t, 200, prefill, 1e-9)
}

func TestRatesRestartWithAReload(t *testing.T) {
	c := &clockwork{rates: modelRates{}, now: time.Unix(0, 0), model: model.Status{Name: "m", State: model.Ready}}
	c.pulses(30, 10, 50, 500)
	c.model.Steps = batch.Stats{}
	decode, prefill := c.pulses(1, 0, 0, 0)
	require.Zero(t, decode)
	require.Zero(t, prefill)
	c.rates.sample(c.now, nil)
	require.Empty(t, c.rates, "an unloaded model has no rate")
}

func TestEachLoadedModelHasItsLoad(t *testing.T) {
	steps := batch.Stats{Running: 3, Waiting: 4, WaitingPrefillTokens: 5, FreeBlocks: 60, StartBlocks: 50, CachedBlocks: 20, TotalBlocks: 100}
	var models []model.Status
	for name, state := range map[string]model.State{"ready": model.Ready, "loading": model.Loading, "failed": model.Failed} {
		models = append(models, model.Status{Name: name, State: state, Steps: steps})
	}
	loads := modelRates{}.loads(models)
	require.Len(t, loads, 1, "one that cannot compute has none")
	require.Equal(t, "ready", loads[0].GetName())
	require.EqualValues(t, 3, loads[0].GetRunning())
	require.EqualValues(t, 4, loads[0].GetWaiting())
	require.EqualValues(t, 5, loads[0].GetWaitingPrefillTokens())
	require.EqualValues(t, 50, loads[0].GetFreeBlocks(), "as many as the next prompt can have")
}
