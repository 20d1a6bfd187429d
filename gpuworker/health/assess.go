package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
)

// State of a worker.
type State int

// States. A worker is asked to serve in Ready and Degraded only.
const (
	Starting State = iota + 1
	Ready
	Degraded
	Draining
	NotReady
)

// Check is one named condition behind a state.
type Check struct {
	Name    string
	OK      bool
	Message string // what is wrong and what to do; empty when OK
}

// Input is what a worker knows of itself.
type Input struct {
	Starting, Draining bool
	Models             []model.Status
	Device             error // why the device cannot be used any more; nil while it can
}

// Assess gives the state and every check: of the device where it failed, then in the order of the models. A step beyond its
// bound or a failed device makes the worker NotReady; a model out of service makes it Degraded.
func Assess(in Input) (State, []Check) {
	checks := make([]Check, 0, 1+2*len(in.Models))
	state := Ready
	if in.Device != nil {
		checks = append(checks, Check{Name: "device", Message: in.Device.Error()})
		state = NotReady
	}
	for _, m := range in.Models {
		if m.State == model.Loading {
			continue
		}
		step := Check{Name: "step-progress/" + m.Name, OK: true}
		if m.Steps.RunningStepAge > m.Steps.StepBound {
			step.OK = false
			step.Message = fmt.Sprintf("a step has been running for %v, more than %v: the device hangs; restart the worker",
				m.Steps.RunningStepAge.Round(time.Millisecond), m.Steps.StepBound)
			state = NotReady
		}
		serving := Check{Name: "model/" + m.Name, OK: true}
		if m.State == model.Failed {
			serving.OK = false
			serving.Message = m.Problem.Error()
			switch {
			case errors.Is(m.Problem, batch.ErrStepFailed):
				state = NotReady
			case state == Ready:
				state = Degraded
			}
		}
		checks = append(checks, step, serving)
	}
	switch {
	case in.Draining:
		state = Draining
	case in.Starting && state != NotReady:
		state = Starting
	}
	return state, checks
}
