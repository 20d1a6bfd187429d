package health

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
)

// State is the state of a worker.
type State int

// States; of Ready, Degraded and NotReady the later is the worse. A worker is asked to serve in
// Ready and Degraded only.
const (
	Starting State = iota + 1
	Ready
	Degraded
	Draining
	NotReady
)

// Input is the report of a worker about itself.
type Input struct {
	Starting, Draining bool
	Models             []model.Status
	Codebooks          []vectors.Status  // loaded ones
	Failure            error             // why the device cannot be used any more; nil: it works
	Device             engine.DeviceInfo // meaningless if Failure is set
	Leaked             uint64            // buffers that were dropped without being freed
	VerifyInterval     time.Duration     // between residency checks; 0 or less: no checks
	// Doubtful are the models with a step beyond its bound that does not count as hung yet; see
	// Overdue.
	Doubtful map[string]bool
}

// Assess returns the state and every check that can be judged: of the device, then of each model
// that is not being loaded, then of each codebook. A step beyond its bound or a failed device makes
// the worker NotReady. Any other failed check makes it Degraded, except CheckManagement: a missing
// reading matters to the operator but takes nothing from a request.
func Assess(in Input) (State, []Check) {
	verdicts := in.device()
	for _, m := range in.Models {
		if m.State != model.Loading {
			verdicts = append(verdicts, ofModel(m, in)...)
		}
	}
	for _, c := range in.Codebooks {
		verdicts = append(verdicts, ofCodebook(c, in.VerifyInterval)...)
	}
	state, checks := Ready, make([]Check, len(verdicts))
	for i, v := range verdicts {
		checks[i] = v.Check
		state = max(state, v.atBest)
	}
	switch {
	case in.Draining:
		state = Draining
	case in.Starting && state != NotReady:
		state = Starting
	}
	return state, checks
}

var stateNames = map[State]string{
	Starting: "starting", Ready: "ready", Degraded: "degraded", Draining: "draining", NotReady: "not ready",
}

// String is the state in words.
func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("state %d", int(s))
}

// Look is a worker's judgement of itself with its input. It is immutable.
type Look struct {
	Input
	State  State
	Checks []Check
	At     time.Time
}
