package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
)

func TestOverdueConfirmsAHang(t *testing.T) {
	// A step counts as hung when it was seen beyond its bound for a while.
	var overdue health.Overdue
	look := func(ms int) health.State {
		age := time.Duration(ms) * time.Millisecond
		m := model.Status{Name: "m", State: model.Ready, Steps: batch.Stats{RunningStepAge: age, StepBound: time.Second}}
		state, _ := health.Assess(health.Input{Models: []model.Status{m}, Doubtful: overdue.Look([]model.Status{m})})
		return state
	}
	require.Equal(t, health.Ready, look(3000), "the process may have been stopped itself")
	require.Equal(t, health.Ready, look(3001), "and looks again at once")
	require.Equal(t, health.Ready, look(3199))
	require.Equal(t, health.NotReady, look(3200))
	require.Equal(t, health.NotReady, look(3300))
	require.Equal(t, health.Ready, look(1100), "another step is another doubt")
	require.Equal(t, health.NotReady, look(1300))
	require.Equal(t, health.Ready, look(1000), "it has ended")
	require.Equal(t, health.Ready, look(1300))
	require.Empty(t, overdue.Look(nil))
}
