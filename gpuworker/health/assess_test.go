package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

func TestAssess(t *testing.T) {
	steps := func(age time.Duration) batch.Stats {
		return batch.Stats{RunningStepAge: age, StepBound: time.Second}
	}
	good := model.Status{Name: "good", State: model.Ready, Steps: steps(0)}
	busy := model.Status{Name: "busy", State: model.Ready, Steps: steps(time.Second)}
	hung := model.Status{Name: "hung", State: model.Ready, Steps: steps(time.Second + 1)}
	corrupt := model.Status{Name: "bad", State: model.Failed, Problem: model.ErrCorrupt, Steps: steps(0)}
	dead := model.Status{Name: "dead", State: model.Failed, Steps: steps(0),
		Problem: fmt.Errorf("%w: %w", batch.ErrStepFailed, engine.ErrDevice)}
	for name, tc := range map[string]struct {
		in     Input
		want   State
		failed []string
	}{
		"an empty worker is ready":               {Input{}, Ready, nil},
		"a loading model changes nothing":        {Input{Models: []model.Status{{Name: "x", State: model.Loading}}}, Ready, nil},
		"a step at its bound is no fault":        {Input{Models: []model.Status{good, busy}}, Ready, nil},
		"a step beyond its bound is a hang":      {Input{Models: []model.Status{good, hung}}, NotReady, []string{"step-progress/hung"}},
		"a corrupt model degrades":               {Input{Models: []model.Status{corrupt, good}}, Degraded, []string{"model/bad"}},
		"a dead device outweighs a bad model":    {Input{Models: []model.Status{dead, corrupt}}, NotReady, []string{"model/dead", "model/bad"}},
		"a failed device needs no model":         {Input{Device: engine.ErrDevice, Models: []model.Status{good}}, NotReady, []string{"device"}},
		"a bad model does not hide it":           {Input{Device: engine.ErrDevice, Models: []model.Status{corrupt}}, NotReady, []string{"device", "model/bad"}},
		"starting hides ready":                   {Input{Starting: true, Models: []model.Status{good}}, Starting, nil},
		"starting does not hide a hang":          {Input{Starting: true, Models: []model.Status{hung}}, NotReady, []string{"step-progress/hung"}},
		"draining is told whatever else is true": {Input{Draining: true, Starting: true, Models: []model.Status{hung}}, Draining, []string{"step-progress/hung"}},
	} {
		t.Run(name, func(t *testing.T) {
			state, checks := Assess(tc.in)
			require.Equal(t, tc.want, state)
			var failed []string
			for _, c := range checks {
				if !c.OK {
					failed = append(failed, c.Name)
					require.NotEmpty(t, c.Message)
				} else {
					require.Empty(t, c.Message)
				}
			}
			require.Equal(t, tc.failed, failed)
		})
	}
}
