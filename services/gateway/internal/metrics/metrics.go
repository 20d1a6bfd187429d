package metrics

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/monitor"
)

// seconds are the histogram bounds: 1 ms to 1 h.
var seconds = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

var (
	requestsMetric = monitor.Metric{Name: "millrace_gateway_requests_total", Kind: monitor.Counter, Labels: []string{"route", "status"},
		Help: "Requests that ended, by HTTP status; 499: the client left before its answer began."}
	failuresMetric = monitor.Metric{Name: "millrace_gateway_failed_requests_total", Kind: monitor.Counter, Labels: []string{"route", "reason"},
		Help: "Requests that ended with an error, also in the middle of a stream, by its reason."}
	secondsMetric = monitor.Metric{Name: "millrace_gateway_request_seconds", Kind: monitor.Histogram, Labels: []string{"route"},
		Help: "Time of a request from its headers to the end of its answer."}
	runningMetric = monitor.Metric{Name: "millrace_gateway_running_requests", Kind: monitor.Gauge, Labels: []string{"route"},
		Help: "Requests whose answer has not ended."}
	infoMetric = monitor.Metric{Name: "millrace_gateway_info", Kind: monitor.Gauge, Labels: []string{"version"},
		Help: "Always 1: which release it is."}

	readings = []monitor.Reading[Source]{
		{Name: "millrace_gateway_held_request_bytes", Kind: monitor.Gauge,
			Help: "Bytes of bodies above 32 KiB whose requests have no answer yet.",
			Read: func(s Source) float64 { return float64(s.Server.HeldBytes()) }},
		{Name: "millrace_gateway_max_held_request_bytes", Kind: monitor.Gauge, Help: "Bytes of such bodies beyond which requests are refused.",
			Read: func(s Source) float64 { return float64(s.MaxHeldBytes) }},
	}
)

// Source provides the values of a scrape.
type Source struct {
	Server       *httpapi.Server
	MaxHeldBytes int64
	// Version is the program's version.
	Version string
}

// Metrics are the gateway's metrics. It implements httpapi.Observer.
type Metrics struct {
	requests, failures *prometheus.CounterVec
	seconds            *prometheus.HistogramVec
	running            *prometheus.GaugeVec
}

// New returns metrics at 0.
func New() *Metrics {
	counters := func(a monitor.Metric) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: a.Name, Help: a.Help}, a.Labels)
	}
	return &Metrics{
		requests: counters(requestsMetric), failures: counters(failuresMetric),
		seconds: prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: secondsMetric.Name, Help: secondsMetric.Help, Buckets: seconds}, secondsMetric.Labels),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: runningMetric.Name, Help: runningMetric.Help}, runningMetric.Labels),
	}
}

// Began implements httpapi.Observer.
func (m *Metrics) Began(route string) { m.running.WithLabelValues(route).Inc() }

// Ended implements httpapi.Observer.
func (m *Metrics) Ended(route string, status int, failure *httpapi.Failure, took time.Duration) {
	m.running.WithLabelValues(route).Dec()
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
	if failure != nil {
		m.failures.WithLabelValues(route, failure.KnownReason()).Inc()
	}
}

// Page returns the page of the metrics and both probes. A gateway that responds is alive.
func (m *Metrics) Page(from Source) (monitor.Page, error) {
	registry, err := monitor.Registry(&collector{m, from})
	if err != nil {
		return monitor.Page{}, err
	}
	return monitor.Page{
		Metrics: registry,
		Alive:   func() (bool, string) { return true, "alive\n" },
		Able:    func() (bool, string) { return from.Server.Able(context.Background()) },
	}, nil
}

// collector collects every metric.
type collector struct {
	*Metrics
	from Source
}

func (m *Metrics) vecs() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.failures, m.seconds, m.running}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.vecs() {
		v.Describe(out)
	}
	for _, r := range readings {
		out <- r.Metric().Desc()
	}
	out <- infoMetric.Desc()
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, v := range c.vecs() {
		v.Collect(out)
	}
	for _, r := range readings {
		r.Send(out, c.from, nil)
	}
	out <- prometheus.MustNewConstMetric(infoMetric.Desc(), prometheus.GaugeValue, 1, c.from.Version)
}

// All returns every metric of a gateway sorted by name, without those of the runtime.
func All() []monitor.Metric {
	all := append(monitor.Metrics(readings), requestsMetric, failuresMetric, secondsMetric, runningMetric, infoMetric)
	slices.SortFunc(all, func(a, b monitor.Metric) int { return strings.Compare(a.Name, b.Name) })
	return all
}

var _ httpapi.Observer = (*Metrics)(nil)
