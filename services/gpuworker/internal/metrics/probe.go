package metrics

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/services/internal/monitor"
)

// lookLimit is the age of the worker's last look at itself from which on it counts as hung: a look is made ten times a second,
// and waits for nothing but the device's readings.
const lookLimit = 10 * time.Second

// Page is the measures and both probes: a worker is alive unless the device is lost, a step hangs, or its own watch does, and able
// while it asks for requests. Both name the checks that do not hold.
func (m *Metrics) Page(from Source) (monitor.Page, error) {
	registry, err := m.registry(from)
	if err != nil {
		return monitor.Page{}, err
	}
	page := monitor.Page{Measures: registry}
	if from.VLLM {
		page.Measures = aliased{registry, vllm}
	}
	page.Alive = func() (bool, string) {
		l := from.Look()
		return l == nil || l.State != health.NotReady && time.Since(l.At) < lookLimit, describe(l)
	}
	page.Able = func() (bool, string) {
		l := from.Look()
		return l != nil && serves(l.State) && time.Since(l.At) < lookLimit, describe(l)
	}
	return page, nil
}

// describe is the state and the checks that do not hold, a line each.
func describe(l *health.Look) string {
	if l == nil {
		return "starting\n"
	}
	var out strings.Builder
	fmt.Fprintln(&out, l.State)
	if age := time.Since(l.At); age >= lookLimit {
		fmt.Fprintf(&out, "the worker has not looked at itself for %v\n", age.Round(time.Second))
	}
	for _, c := range l.Checks {
		if !c.OK {
			fmt.Fprintf(&out, "%s: %s\n", c.Name, c.Message)
		}
	}
	return out.String()
}
