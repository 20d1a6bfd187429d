package monitor

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind of a measure, as Prometheus names it.
type Kind string

// Kinds.
const (
	Counter   Kind = "counter"   // only grows, from 0
	Gauge     Kind = "gauge"     // is as it is at the scrape
	Histogram Kind = "histogram" // counts of observations by upper bound, their sum and their number
)

// About is what docs/measures.md says of a measure.
type About struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string
}

// Desc is the same for Prometheus.
func (a About) Desc() *prometheus.Desc { return prometheus.NewDesc(a.Name, a.Help, a.Labels, nil) }

// Reading is a measure, or one series of it, that is read from a T at each scrape.
type Reading[T any] struct {
	Name string
	Kind Kind
	Help string
	// Label and Value tell series of one name apart; both are empty where there is one.
	Label, Value string
	// Read gives the value; Unknown leaves the series out.
	Read func(T) float64
}

// Unknown is the value of a reading that nobody knows.
var Unknown = math.NaN()

// About is the measure, whose series have the labels given first, if any, and then their own.
func (r Reading[T]) About(first ...string) About {
	a := About{Name: r.Name, Kind: r.Kind, Help: r.Help, Labels: first}
	if r.Label != "" {
		a.Labels = append(a.Labels[:len(first):len(first)], r.Label)
	}
	return a
}

// Abouts are the measures of readings, one for each series, with the labels that all of them are given first.
func Abouts[T any](readings []Reading[T], first ...string) []About {
	all := make([]About, 0, len(readings))
	for _, r := range readings {
		all = append(all, r.About(first...))
	}
	return all
}

// Send sends the series as it is in t, unless its value is unknown. labels and values are those that come before its own; values are
// any bytes, of which what is not UTF-8 is replaced.
func (r Reading[T]) Send(out chan<- prometheus.Metric, t T, labels []string, values ...string) {
	value := r.Read(t)
	if math.IsNaN(value) {
		return
	}
	of := prometheus.GaugeValue
	if r.Kind == Counter {
		of = prometheus.CounterValue
	}
	all := make([]string, 0, len(values)+1)
	for _, v := range values {
		all = append(all, Text(v))
	}
	if r.Label != "" {
		all = append(all, r.Value)
	}
	out <- prometheus.MustNewConstMetric(r.About(labels...).Desc(), of, value, all...)
}

// Truth is 1 or 0.
func Truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
