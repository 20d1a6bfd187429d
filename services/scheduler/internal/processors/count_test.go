package processors

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load runs count for a time under a demand of processors, of which it uses no more than it has. It
// returns the final number.
func load(c *Count, lasts time.Duration, demand float64) int {
	for range lasts / period {
		used := time.Duration(min(demand, float64(c.Now())) * float64(period))
		c.Next(period, period, used)
	}
	return c.Now()
}

func TestOneProcessorSufficesForLowLoad(t *testing.T) {
	c := &Count{Max: 64}
	require.Equal(t, 1, c.Now())
	require.Equal(t, 1, load(c, time.Minute, 0.7))
}

func TestCountReachesMax(t *testing.T) {
	c := &Count{Max: 64}
	require.Equal(t, 64, load(c, 6*period, 1000), "64 processors after six periods")
	require.Equal(t, 64, load(c, time.Minute, 1000))
	for _, all := range []int{1, 2, 3, 48, 96, 255} {
		c := &Count{Max: all}
		require.Equal(t, all, load(c, 8*period, 1000), "every number is reached, also one that is no power of two")
	}
}

func TestCountHalvesAfterACalmTime(t *testing.T) {
	c := &Count{Max: 8}
	require.Equal(t, 8, load(c, 3*period, 8))
	require.Equal(t, 8, load(c, calm-period, 1))
	require.Equal(t, 4, load(c, period, 1))
	require.Equal(t, 2, load(c, calm, 1))
	require.Equal(t, 2, load(c, time.Minute, 1), "one is no less than a demand of one")
	require.Equal(t, 1, load(c, calm, 0.4))
	require.Equal(t, 1, load(c, time.Minute, 0))
}

func TestLoadRestartsTheCalmTime(t *testing.T) {
	c := &Count{Max: 2}
	load(c, period, 2)
	for range 10 {
		load(c, calm-period, 0.1)
		require.Equal(t, 2, load(c, period, 1.2))
	}
}

func TestSteadyDemandDoesNotOscillate(t *testing.T) {
	for demand := 0.0; demand <= 20; demand += 0.05 {
		c := &Count{Max: 16}
		load(c, period, 16)
		load(c, 10*time.Second, demand)
		settled := c.Now()
		for range 4000 {
			require.Equal(t, settled, load(c, period, demand), "demand of %.2f", demand)
		}
	}
}

func TestWaitingCountsAsLoad(t *testing.T) {
	c := &Count{Max: 4}
	require.Equal(t, 1, c.Next(period, period, period/2))
	require.Equal(t, 2, c.Next(period, 2*period, period), "half of the time used, and half waited")
}

func TestZeroTimesChangeNothing(t *testing.T) {
	c := &Count{Max: 4}
	require.Equal(t, 1, c.Next(period, 0, 0))
	require.Equal(t, 1, c.Next(period, period, -period))
}
