package health

import (
	"time"

	"github.com/millrace/millrace/gpuworker/model"
)

// confirm is for how long a step must be seen beyond its bound before it counts as hung. A process
// that was itself stopped for a while finds its step too old when it continues, but that step ends
// at once.
const confirm = 200 * time.Millisecond

// Overdue remembers which steps were beyond their bounds. The zero value is ready. For one
// goroutine.
type Overdue struct {
	first map[string]time.Duration // by model: age of the step when it was first seen beyond its bound
}

// Look takes the present models and returns those with a step beyond its bound that was not seen so
// for long enough yet.
func (o *Overdue) Look(models []model.Status) (doubtful map[string]bool) {
	var first map[string]time.Duration
	for _, m := range models {
		age := m.Steps.RunningStepAge
		if age <= m.Steps.StepBound {
			continue
		}
		since, seen := o.first[m.Name]
		if !seen || age < since { // another step
			since = age
		}
		if first == nil {
			first = map[string]time.Duration{}
		}
		if first[m.Name] = since; age-since < confirm {
			if doubtful == nil {
				doubtful = map[string]bool{}
			}
			doubtful[m.Name] = true
		}
	}
	o.first = first
	return doubtful
}
