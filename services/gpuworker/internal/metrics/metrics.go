package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
)

// Source is what a scrape reads. Its functions return at once, and may be called from any goroutine.
type Source struct {
	// Models are the models loaded or being loaded.
	Models func() []model.Status
	// Loads is how many loads have ended, well and otherwise.
	Loads func() (loaded, failed uint64)
	// Look is the worker's last look at itself, nil before the first.
	Look func() *health.Look
	// WorkerID and Version say who it is.
	WorkerID, Version string
}

// Metrics are a worker's measures. Make them with New.
type Metrics struct {
	told *told

	mu        sync.Mutex
	observers map[string]*observer // guarded by mu; by model, those whose series are there
}

// New makes measures that nobody has told anything.
func New() *Metrics { return &Metrics{told: newTold(), observers: map[string]*observer{}} }

// Observe gives the loop of a model that is being loaded what it tells its measures to. They begin at 0, also where a model of
// this name was there before.
func (m *Metrics) Observe(name string) batch.Observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told.drop(name)
	o := m.told.of(name)
	m.observers[name] = o
	return o
}

// sweep ends the series of models that are gone, and returns those that are there. A model is among those that list gives from
// before Observe is called for it until it is unloaded, so that the series of one that appears meanwhile stay.
func (m *Metrics) sweep(list func() []model.Status) []model.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	models := list()
	for name := range m.observers {
		if !slices.ContainsFunc(models, func(s model.Status) bool { return s.Name == name }) {
			m.told.drop(name)
			delete(m.observers, name)
		}
	}
	return models
}

// registry is all measures of a worker, and those of its process and of the Go runtime.
func (m *Metrics) registry(from Source) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		&collector{metrics: m, from: from},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// workerInfo names the worker in a series of its own, for joins.
var workerInfo = about{
	name: "millrace_worker_info", kind: gauge, labels: []string{"worker_id", "version", "device", "device_name"},
	help: "Always 1: who the worker is, and what it computes on.",
}

// collector gives every measure of ours, after it has ended those of models that are gone.
type collector struct {
	metrics *Metrics
	from    Source
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, a := range readings() {
		out <- a.desc()
	}
	for _, v := range c.metrics.told.vecs {
		v.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	send := func(m prometheus.Metric) {
		if m != nil {
			out <- m
		}
	}
	for _, s := range c.metrics.sweep(c.from.Models) {
		if !hasLoop(s) {
			continue
		}
		for _, r := range ofModel {
			send(r.metric(s, s.Name))
		}
	}
	for _, v := range c.metrics.told.vecs {
		v.Collect(out)
	}
	var n counts
	n.loaded, n.failed = c.from.Loads()
	for _, r := range ofCounts {
		send(r.metric(n))
	}
	look := c.from.Look()
	if look == nil {
		return
	}
	for _, r := range ofWorker {
		send(r.metric(look))
	}
	send(prometheus.MustNewConstMetric(workerInfo.desc(), prometheus.GaugeValue, 1, c.from.WorkerID, c.from.Version,
		look.Device.Kind, look.Device.Name))
}

// readings are the measures that no loop tells, each once.
func readings() (all []about) {
	for _, r := range ofModel {
		all = append(all, r.about(labelModel))
	}
	for _, r := range ofWorker {
		all = append(all, r.about())
	}
	for _, r := range ofCounts {
		all = append(all, r.about())
	}
	return slices.CompactFunc(append(all, workerInfo), func(a, b about) bool { return a.name == b.name })
}
