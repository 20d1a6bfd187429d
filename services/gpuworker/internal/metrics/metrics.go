package metrics

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/internal/monitor"
)

// Source is what a scrape reads. Its functions return at once, and may be called from any goroutine.
type Source struct {
	// Models are the models loaded or being loaded.
	Models func() []model.Status
	// Counts are what is counted of the worker as a whole.
	Counts func() Counts
	// Vectors is what is done for codebooks.
	Vectors func() vectors.Stats
	// Look is the worker's last look at itself, nil before the first.
	Look func() *health.Look
	// WorkerID and Version say who it is.
	WorkerID, Version string
	// Calls are those of its server; nil: they are not counted.
	Calls *monitor.Calls
	// VLLM is whether measures have the names of vLLM too.
	VLLM bool
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
	own := []prometheus.Collector{&collector{metrics: m, from: from}}
	if from.Calls != nil {
		own = append(own, from.Calls)
	}
	return monitor.Registry(own...)
}

// workerInfo names the worker in a series of its own, for joins.
var workerInfo = monitor.About{
	Name: "millrace_worker_info", Kind: monitor.Gauge, Labels: []string{"worker_id", "version", "device", "device_name"},
	Help: "Always 1: who the worker is, and what it computes on.",
}

// collector gives every measure of ours, after it has ended those of models that are gone.
type collector struct {
	metrics *Metrics
	from    Source
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, a := range readings() {
		out <- a.Desc()
	}
	for _, v := range c.metrics.told.vecs {
		v.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	models := c.metrics.sweep(c.from.Models)
	for _, s := range models {
		if !hasLoop(s) {
			continue
		}
		for _, r := range ofModel {
			r.Send(out, s, []string{labelModel}, s.Name)
		}
	}
	for _, v := range c.metrics.told.vecs {
		v.Collect(out)
	}
	for _, r := range ofModels {
		r.Send(out, models, nil)
	}
	n := c.from.Counts()
	for _, r := range ofCounts {
		r.Send(out, n, nil)
	}
	if st := c.from.Vectors(); st.Supported {
		for _, r := range ofVectors {
			r.Send(out, st, nil)
		}
	}
	look := c.from.Look()
	if look == nil {
		return
	}
	for _, r := range ofWorker {
		r.Send(out, look, nil)
	}
	out <- prometheus.MustNewConstMetric(workerInfo.Desc(), prometheus.GaugeValue, 1, monitor.Text(c.from.WorkerID), c.from.Version,
		look.Device.Kind, monitor.Text(look.Device.Name))
}

// readings are the measures that no loop tells, each once.
func readings() (all []monitor.About) {
	all = append(all, monitor.Abouts(ofModel, labelModel)...)
	all = append(all, monitor.Abouts(ofWorker)...)
	all = append(all, monitor.Abouts(ofModels)...)
	all = append(all, monitor.Abouts(ofCounts)...)
	all = append(all, monitor.Abouts(ofVectors)...)
	return slices.CompactFunc(append(all, workerInfo), func(a, b monitor.About) bool { return a.Name == b.Name })
}

// All is every measure of a worker, in the order of names, those of Calls and of the runtime aside.
func All() []monitor.About {
	all := append(readings(), newTold().abouts...)
	slices.SortFunc(all, func(a, b monitor.About) int { return strings.Compare(a.Name, b.Name) })
	return all
}
