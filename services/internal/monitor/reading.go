package monitor

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a metric in Prometheus.
type Kind string

// Kinds.
const (
	Counter   Kind = "counter"   // only grows, from 0
	Gauge     Kind = "gauge"     // a current value
	Histogram Kind = "histogram" // counts of observations by upper bound, with sum and number
)

// Metric describes a metric, as its document does.
type Metric struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string
}

// Desc returns the description for Prometheus.
func (a Metric) Desc() *prometheus.Desc { return prometheus.NewDesc(a.Name, a.Help, a.Labels, nil) }

// Reading is a metric, or one series of it, whose value is read from a T at each scrape.
type Reading[T any] struct {
	Name string
	Kind Kind
	Help string
	// Label and Value distinguish the series of one name. Both are "" if there is one series.
	Label, Value string
	// Read returns the value. Unknown omits the series.
	Read func(T) float64
}

// Unknown is the value of a reading that is not known.
var Unknown = math.NaN()

// Metric describes the metric. Its series have the labels in first, then their own.
func (r Reading[T]) Metric(first ...string) Metric {
	a := Metric{Name: r.Name, Kind: r.Kind, Help: r.Help, Labels: first}
	if r.Label != "" {
		a.Labels = append(a.Labels[:len(first):len(first)], r.Label)
	}
	return a
}

// Metrics describes readings, one entry for each series, with the labels in first.
func Metrics[T any](readings []Reading[T], first ...string) []Metric {
	all := make([]Metric, 0, len(readings))
	for _, r := range readings {
		all = append(all, r.Metric(first...))
	}
	return all
}

// Send sends the series' value in t unless it is unknown. labels and values come before its own
// label. values may be any bytes: bytes that are not UTF-8 are replaced.
func (r Reading[T]) Send(out chan<- prometheus.Metric, t T, labels []string, values ...string) {
	value := r.Read(t)
	if math.IsNaN(value) {
		return
	}
	valueType := prometheus.GaugeValue
	if r.Kind == Counter {
		valueType = prometheus.CounterValue
	}
	all := make([]string, 0, len(values)+1)
	for _, v := range values {
		all = append(all, Text(v))
	}
	if r.Label != "" {
		all = append(all, r.Value)
	}
	out <- prometheus.MustNewConstMetric(r.Metric(labels...).Desc(), valueType, value, all...)
}

// Truth returns 1 or 0.
func Truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
