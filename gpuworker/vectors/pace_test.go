package vectors

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlicesAreShortWhileModelsWork(t *testing.T) {
	// A slice is short while models compute steps, and long while they are idle.
	now := time.Now()
	p := pace{share: 0.1}
	require.Equal(t, sliceBudget, p.budget(true), "nothing is known of the steps yet")
	p.observe(Tokens{Busy: true, Steps: 100}, now)
	p.observe(Tokens{Busy: true, Steps: 110}, now.Add(100*time.Millisecond)) // 10 ms each
	require.Equal(t, time.Millisecond, p.budget(true))
	require.Equal(t, sliceBudget, p.budget(false))
	p.observe(Tokens{Busy: true, Steps: 1110}, now.Add(200*time.Millisecond)) // 100 us
	require.Equal(t, leastBudget, p.budget(true))
	p.observe(Tokens{Busy: true, Steps: 1111}, now.Add(10*time.Second)) // a prompt
	require.Equal(t, sliceBudget, p.budget(true))
}

func TestPaceIgnoresIdleTimeAndEndedLoops(t *testing.T) {
	// Idle time and loops that end do not count as steps.
	now := time.Now()
	p := pace{share: 0.1}
	p.observe(Tokens{Busy: true, Steps: 100}, now)
	p.observe(Tokens{Busy: true, Steps: 110}, now.Add(100*time.Millisecond))
	p.observe(Tokens{Steps: 110}, now.Add(time.Second))
	p.observe(Tokens{Busy: true, Steps: 111}, now.Add(time.Minute))
	require.Equal(t, 10*time.Millisecond, p.step)
	p.observe(Tokens{Busy: true, Steps: 3}, now.Add(2*time.Minute)) // a model was unloaded
	p.observe(Tokens{Busy: true, Steps: 3}, now.Add(3*time.Minute)) // a step takes long
	require.Equal(t, 10*time.Millisecond, p.step)
}

func TestPaceRestsForItsShare(t *testing.T) {
	// A training rests for its share, and longer if the steps of models would slow down.
	p := pace{share: 0.1, step: 10 * time.Millisecond}
	require.Equal(t, 9*time.Millisecond, p.rest(time.Millisecond))
	require.Equal(t, 18*time.Millisecond, p.rest(2*time.Millisecond))
	require.Equal(t, rare*10*time.Millisecond, p.rest(2*time.Millisecond+1))
	require.Equal(t, rare*time.Second, p.rest(time.Second), "it has held up a hundred steps")
	require.Equal(t, 99*time.Second, (&pace{share: 0.01, step: 10 * time.Second}).rest(time.Second), "its share is less")
	whole := pace{share: 1}
	require.Zero(t, whole.rest(time.Second))
}
