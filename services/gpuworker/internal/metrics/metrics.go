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
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/monitor"
)

// Source has the inputs of a scrape. Its functions must return at once, and be safe for concurrent
// use.
type Source struct {
	// Models returns the models that are loaded or being loaded.
	Models func() []model.Status
	// Counts returns the counters of the worker as a whole.
	Counts func() Counts
	// Vectors returns the statistics of codebooks.
	Vectors func() vectors.Stats
	// Assessment is the worker's last one, nil before the first.
	Assessment func() *health.Look
	// WorkerID and Version go into a series of their own.
	WorkerID, Version string
	// Calls are the calls of the worker's server; nil: they are not counted.
	Calls *monitor.Calls
	// VLLM exports metrics under vLLM's names too.
	VLLM bool
}

// Metrics are a worker's metrics. Make them with New. A nil *Metrics has no observers.
type Metrics struct {
	instruments *instruments

	mu struct {
		sync.Mutex
		observers map[string]*observer // by model, those that have series
	}
}

// New returns metrics without a model.
func New() *Metrics {
	m := &Metrics{instruments: newInstruments()}
	m.mu.observers = map[string]*observer{}
	return m
}

// ServerObserver returns the observer of the server's generations.
func (m *Metrics) ServerObserver() server.Observer {
	if m == nil {
		return nil
	}
	return m
}

// LoopObservers returns the function that makes the observer of a model's step loop.
func (m *Metrics) LoopObservers() func(model string) batch.Observer {
	if m == nil {
		return nil
	}
	return m.loopObserver
}

// loopObserver starts the series of a model that is being loaded. They begin at 0, even if a model
// of this name had series before.
func (m *Metrics) loopObserver(name string) batch.Observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instruments.drop(name)
	o := m.instruments.observer(name)
	m.mu.observers[name] = o
	return o
}

// sweep ends the series of models that were unloaded, and returns the loaded models. It must call
// list under the lock: list has a model from before its series start until it is unloaded, so no
// series of a new model ends here.
func (m *Metrics) sweep(list func() []model.Status) []model.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	models := list()
	for name := range m.mu.observers {
		if !slices.ContainsFunc(models, func(s model.Status) bool { return s.Name == name }) {
			m.instruments.drop(name)
			delete(m.mu.observers, name)
		}
	}
	return models
}

// registry returns all metrics of a worker, and those of its process and of the Go runtime.
func (m *Metrics) registry(from Source) (*prometheus.Registry, error) {
	own := []prometheus.Collector{&collector{metrics: m, from: from}}
	if from.Calls != nil {
		own = append(own, from.Calls)
	}
	return monitor.Registry(own...)
}

// workerInfo is a series with the worker's names, for joins.
var workerInfo = monitor.Metric{
	Name: "millrace_worker_info", Kind: monitor.Gauge, Labels: []string{"worker_id", "version", "device", "device_name"},
	Help: "Always 1: the worker's id, its version and its device.",
}

// collector sends every metric of ours, after it has ended the series of unloaded models.
type collector struct {
	metrics *Metrics
	from    Source
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, a := range readings() {
		out <- a.Desc()
	}
	for _, v := range c.metrics.instruments.vecs {
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
		for _, r := range modelReadings {
			r.Send(out, s, []string{labelModel}, s.Name)
		}
	}
	for _, v := range c.metrics.instruments.vecs {
		v.Collect(out)
	}
	for _, r := range stateReadings {
		r.Send(out, models, nil)
	}
	n := c.from.Counts()
	for _, r := range countReadings {
		r.Send(out, n, nil)
	}
	if st := c.from.Vectors(); st.Supported {
		for _, r := range vectorReadings {
			r.Send(out, st, nil)
		}
	}
	assessment := c.from.Assessment()
	if assessment == nil {
		return
	}
	for _, r := range workerReadings {
		r.Send(out, assessment, nil)
	}
	out <- prometheus.MustNewConstMetric(workerInfo.Desc(), prometheus.GaugeValue, 1, monitor.Text(c.from.WorkerID), c.from.Version,
		assessment.Device.Kind, monitor.Text(assessment.Device.Name))
}

// readings returns the metrics that are read at a scrape, each once.
func readings() (all []monitor.Metric) {
	all = append(all, monitor.Metrics(modelReadings, labelModel)...)
	all = append(all, monitor.Metrics(workerReadings)...)
	all = append(all, monitor.Metrics(stateReadings)...)
	all = append(all, monitor.Metrics(countReadings)...)
	all = append(all, monitor.Metrics(vectorReadings)...)
	return slices.CompactFunc(append(all, workerInfo), func(a, b monitor.Metric) bool { return a.Name == b.Name })
}

// All returns every metric of a worker in the order of names, without those of Calls and of the
// runtime.
func All() []monitor.Metric {
	all := append(readings(), newInstruments().abouts...)
	slices.SortFunc(all, func(a, b monitor.Metric) int { return strings.Compare(a.Name, b.Name) })
	return all
}
