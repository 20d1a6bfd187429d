package health

import (
	"errors"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

// overdueAfter is how many intervals may pass between two residency checks. A check waits for those
// of other models and yields to requests, which a second interval covers. A third one means that it
// does not happen.
const overdueAfter = 3

// ofModel judges a model that is not being loaded.
func ofModel(m model.Status, in Input) []verdict {
	interval := in.VerifyInterval
	all := []verdict{stepProgress(m, in.Doubtful[m.Name]), service(m)}
	// A model that is leaving or has failed is not checked any more.
	if interval > 0 && m.State == model.Ready && m.VerifiedAge > 0 {
		all = append(all, residency(m, interval))
	}
	return all
}

func stepProgress(m model.Status, doubtful bool) verdict {
	name := CheckStepProgress + "/" + m.Name
	if doubtful || m.Steps.RunningStepAge <= m.Steps.StepBound {
		return passed(name)
	}
	return failed(name, NotReady, "a step has been running for %v, more than %v: the device hangs; restart the worker",
		m.Steps.RunningStepAge.Round(time.Millisecond), m.Steps.StepBound)
}

func service(m model.Status) verdict {
	name := CheckModel + "/" + m.Name
	switch {
	case m.State != model.Failed:
		return passed(name)
	case errors.Is(m.Problem, engine.ErrDevice) && !errors.Is(m.Problem, model.ErrHeld):
		return failed(name, NotReady, "%v", m.Problem)
	}
	return failed(name, Degraded, "%v", m.Problem)
}

func residency(m model.Status, interval time.Duration) verdict {
	name := CheckResidency + "/" + m.Name
	if m.VerifiedAge <= overdueAfter*interval {
		return passed(name)
	}
	return failed(name, Degraded, "the resident bytes were last checked %v ago and checks are due every %v: the device is "+
		"too busy for them; raise --verify-interval or send the worker less", m.VerifiedAge.Round(time.Second), interval)
}
