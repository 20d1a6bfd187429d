package metrics

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/services/internal/monitor"
)

// maxAssessmentAge is the age of the last assessment at which the worker counts as hung. It
// assesses itself ten times a second, and an assessment waits for the device's readings only.
const maxAssessmentAge = 10 * time.Second

// Page returns the metrics and both probes. A worker is alive unless the device is lost, or a step
// or the assessment hangs. It is able while it accepts requests. Both probes name the checks that
// fail.
func (m *Metrics) Page(from Source) (monitor.Page, error) {
	registry, err := m.registry(from)
	if err != nil {
		return monitor.Page{}, err
	}
	page := monitor.Page{Metrics: registry}
	if from.VLLM {
		page.Metrics = aliased{registry, vllm}
	}
	page.Alive = func() (bool, string) {
		l := from.Assessment()
		return l == nil || l.State != health.NotReady && time.Since(l.At) < maxAssessmentAge, describe(l)
	}
	page.Able = func() (bool, string) {
		l := from.Assessment()
		return l != nil && serves(l.State) && time.Since(l.At) < maxAssessmentAge, describe(l)
	}
	return page, nil
}

// describe returns the state and the checks that fail, a line each.
func describe(l *health.Look) string {
	if l == nil {
		return "starting\n"
	}
	var out strings.Builder
	fmt.Fprintln(&out, l.State)
	if age := time.Since(l.At); age >= maxAssessmentAge {
		fmt.Fprintf(&out, "the worker has not assessed itself for %v\n", age.Round(time.Second))
	}
	for _, c := range l.Checks {
		if !c.OK {
			fmt.Fprintf(&out, "%s: %s\n", c.Name, c.Message)
		}
	}
	return out.String()
}
