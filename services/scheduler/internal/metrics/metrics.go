package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// Source provides the values of a scrape. Its functions must return at once, and may be called from
// any goroutine.
type Source struct {
	// Snapshot returns the fleet's latest snapshot.
	Snapshot func() *fleet.Snapshot
	Events   func() fleet.Events
	// Queues returns the queues of all models.
	Queues func() []admission.Stats
	// Loads returns how many loads of models have succeeded and failed.
	Loads func() (loaded, failed uint64)
	// Vectors returns the running calls of VectorService and their bytes.
	Vectors func() (calls, bytes int64)
	// Stopping reports whether the process refuses new calls.
	Stopping func() bool
	// Version is the program's version.
	Version string
	// Calls are the metrics of its server's calls.
	Calls *monitor.Calls
}

// Metrics are a scheduler's metrics. New makes them.
type Metrics struct{ calls *callMetrics }

// New returns metrics at 0.
func New() *Metrics { return &Metrics{calls: newCallMetrics()} }

// Observer returns the observer for the relay. It is nil if m is.
func (m *Metrics) Observer() relay.Observer {
	if m == nil {
		return nil
	}
	return m.calls
}

// Page returns the page of the metrics and both probes. A scheduler that responds is alive. It is
// able from when it knows its fleet until it stops.
func (m *Metrics) Page(from Source) (monitor.Page, error) {
	registry, err := monitor.Registry(&collector{m.calls, from}, from.Calls)
	if err != nil {
		return monitor.Page{}, err
	}
	return monitor.Page{
		Metrics: registry,
		Alive:   func() (bool, string) { return true, from.state() + "\n" },
		Able:    func() (bool, string) { return from.state() == ready, from.state() + "\n" },
	}, nil
}

const ready = "ready"

// state returns the scheduler's state in a word.
func (s Source) state() string {
	switch {
	case s.Stopping():
		return "stopping"
	case !s.Snapshot().Route.Known:
		return "starting: not every worker has answered or failed to"
	}
	return ready
}

// schedulerInfo has the program's version in a series of its own, for joins.
var schedulerInfo = monitor.Metric{
	Name: "millrace_scheduler_info", Kind: monitor.Gauge, Labels: []string{"version"}, Help: "Always 1: which release it is.",
}

// collector collects every metric. It first deletes the series of models that are gone.
type collector struct {
	calls *callMetrics
	from  Source
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, a := range readings() {
		out <- a.Desc()
	}
	for _, v := range c.calls.vecs {
		v.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	snapshot := c.from.Snapshot()
	models := modelsOf(snapshot)
	c.calls.sweep(func(model string) bool { return models[model] })
	for _, v := range c.calls.vecs {
		v.Collect(out)
	}
	for _, s := range bounded(c.from.Queues(), models) {
		for _, r := range queueReadings {
			r.Send(out, s, []string{labelModel}, s.Model)
		}
	}
	all := &whole{ready: c.from.state() == ready, members: snapshot.Members, events: c.from.Events()}
	all.loaded, all.failed = c.from.Loads()
	all.vectorCalls, all.vectorBytes = c.from.Vectors()
	for _, r := range fleetReadings {
		r.Send(out, all, nil)
	}
	out <- prometheus.MustNewConstMetric(schedulerInfo.Desc(), prometheus.GaugeValue, 1, c.from.Version)
	sent := map[[2]string]bool{}
	for i := range snapshot.Members {
		m := &snapshot.Members[i]
		if m.Report == nil {
			continue
		}
		name := [2]string{monitor.Text(m.Report.GetWorkerId()), monitor.Text(m.Address)}
		if sent[name] { // two names were cut to the same
			continue
		}
		if sent[name] = true; len(sent) > maxWorkers {
			return
		}
		for _, r := range workerReadings {
			r.Send(out, m, memberLabels, name[:]...)
		}
	}
}

// modelsOf returns the models that workers report.
func modelsOf(s *fleet.Snapshot) map[string]bool {
	models := map[string]bool{}
	for i := range s.Members {
		for _, m := range s.Members[i].Report.GetModels() {
			models[m.GetName()] = true
		}
	}
	return models
}

// bounded returns the queues of models that workers report: at most maxModels, and one for the
// rest.
func bounded(all []admission.Stats, models map[string]bool) []admission.Stats {
	all = slices.DeleteFunc(all, func(s admission.Stats) bool { return !models[s.Model] })
	if len(all) <= maxModels {
		return all
	}
	rest := admission.Stats{Model: monitor.Rest}
	for _, s := range all[maxModels:] {
		rest = add(rest, s)
	}
	return append(all[:maxModels:maxModels], rest)
}

// readings returns the metrics that are read at a scrape, each once.
func readings() (all []monitor.Metric) {
	all = append(all, monitor.Metrics(queueReadings, labelModel)...)
	all = append(all, monitor.Metrics(fleetReadings)...)
	all = append(all, monitor.Metrics(workerReadings, memberLabels...)...)
	return slices.CompactFunc(append(all, schedulerInfo), func(a, b monitor.Metric) bool { return a.Name == b.Name })
}

// All returns every metric of a scheduler sorted by name, without those of Calls and of the
// runtime.
func All() []monitor.Metric {
	all := append(readings(), newCallMetrics().descriptions...)
	slices.SortFunc(all, func(a, b monitor.Metric) int { return strings.Compare(a.Name, b.Name) })
	return all
}
