package health

import (
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
)

// State of a worker.
type State int

// States; of Ready, Degraded and NotReady the later is the worse. A worker is asked to serve in Ready and Degraded only.
const (
	Starting State = iota + 1
	Ready
	Degraded
	Draining
	NotReady
)

// Input is what a worker knows of itself.
type Input struct {
	Starting, Draining bool
	Models             []model.Status
	Codebooks          []vectors.Status  // loaded ones
	Failure            error             // why the device cannot be used any more; nil while it can
	Device             engine.DeviceInfo // of no meaning when Failure is set
	Leaked             uint64            // buffers that nobody holds any more and that were never freed
	VerifyInterval     time.Duration     // wanted between residency checks; 0 or less: none are wanted
	// Doubtful are the models of which a step is beyond its bound and does not count as hung yet; see Overdue. Nil: none.
	Doubtful map[string]bool
}

// Assess gives the state and every check that can be judged: of the device, then of each model that is not being loaded, in
// the order of the models, then of each codebook. A step beyond its bound or a failed device makes the worker NotReady, any other failed check
// Degraded, but for CheckManagement: a missing reading is the operator's to know and takes nothing from a request.
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
