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

// Source is what a scrape reads. Its functions return at once, and may be called from any goroutine.
type Source struct {
	// Snapshot is the fleet's latest, Events what happened to its health streams.
	Snapshot func() *fleet.Snapshot
	Events   func() fleet.Events
	// Queues are those of the models.
	Queues func() []admission.Stats
	// Loads is how many loads of models have ended, well and otherwise.
	Loads func() (loaded, failed uint64)
	// Vectors are the calls of vectors under way, and their bytes.
	Vectors func() (calls, bytes int64)
	// Stopping is whether the process takes no new calls.
	Stopping func() bool
	// Version is the program's.
	Version string
	// Calls are those of its server.
	Calls *monitor.Calls
}

// Metrics are a scheduler's measures. Make them with New.
type Metrics struct{ told *told }

// New makes measures that nobody has told anything.
func New() *Metrics { return &Metrics{told: newTold()} }

// Observer is for the relay.
func (m *Metrics) Observer() relay.Observer { return m.told }

// Page is the measures and both probes. A scheduler that answers is alive; it is able once it knows its fleet, and until it stops.
func (m *Metrics) Page(from Source) (monitor.Page, error) {
	registry, err := monitor.Registry(&collector{m.told, from}, from.Calls)
	if err != nil {
		return monitor.Page{}, err
	}
	return monitor.Page{
		Measures: registry,
		Alive:    func() (bool, string) { return true, from.state() + "\n" },
		Able:     func() (bool, string) { return from.state() == ready, from.state() + "\n" },
	}, nil
}

const ready = "ready"

// state is the scheduler's in a word.
func (s Source) state() string {
	switch {
	case s.Stopping():
		return "stopping"
	case !s.Snapshot().Route.Known:
		return "starting: not every worker has answered or failed to"
	}
	return ready
}

// schedulerInfo names the program in a series of its own, for joins.
var schedulerInfo = monitor.About{
	Name: "millrace_scheduler_info", Kind: monitor.Gauge, Labels: []string{"version"}, Help: "Always 1: which release it is.",
}

// collector gives every measure, after it has ended those of models that are gone.
type collector struct {
	told *told
	from Source
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, a := range readings() {
		out <- a.Desc()
	}
	for _, v := range c.told.vecs {
		v.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	snapshot := c.from.Snapshot()
	models := modelsOf(snapshot)
	c.told.sweep(func(model string) bool { return models[model] })
	for _, v := range c.told.vecs {
		v.Collect(out)
	}
	for _, s := range bounded(c.from.Queues(), models) {
		for _, r := range ofQueue {
			r.Send(out, s, []string{labelModel}, s.Model)
		}
	}
	all := &whole{ready: c.from.state() == ready, members: snapshot.Members, events: c.from.Events()}
	all.loaded, all.failed = c.from.Loads()
	all.vectorCalls, all.vectorBytes = c.from.Vectors()
	for _, r := range ofWhole {
		r.Send(out, all, nil)
	}
	out <- prometheus.MustNewConstMetric(schedulerInfo.Desc(), prometheus.GaugeValue, 1, c.from.Version)
	told := map[[2]string]bool{}
	for i := range snapshot.Members {
		m := &snapshot.Members[i]
		if m.Report == nil {
			continue
		}
		name := [2]string{monitor.Text(m.Report.GetWorkerId()), monitor.Text(m.Address)}
		if told[name] { // cut to the same
			continue
		}
		if told[name] = true; len(told) > maxWorkers {
			return
		}
		for _, r := range ofMember {
			r.Send(out, m, memberLabels, name[:]...)
		}
	}
}

// modelsOf are the models that workers report.
func modelsOf(s *fleet.Snapshot) map[string]bool {
	models := map[string]bool{}
	for i := range s.Members {
		for _, m := range s.Members[i].Report.GetModels() {
			models[m.GetName()] = true
		}
	}
	return models
}

// bounded are the queues of models that workers report: no more than maxModels, and one of those beyond.
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

// readings are the measures that no call tells, each once.
func readings() (all []monitor.About) {
	all = append(all, monitor.Abouts(ofQueue, labelModel)...)
	all = append(all, monitor.Abouts(ofWhole)...)
	all = append(all, monitor.Abouts(ofMember, memberLabels...)...)
	return slices.CompactFunc(append(all, schedulerInfo), func(a, b monitor.About) bool { return a.Name == b.Name })
}

// All is every measure of a scheduler, in the order of names, those of Calls and of the runtime aside.
func All() []monitor.About {
	all := append(readings(), newTold().abouts...)
	slices.SortFunc(all, func(a, b monitor.About) int { return strings.Compare(a.Name, b.Name) })
	return all
}
