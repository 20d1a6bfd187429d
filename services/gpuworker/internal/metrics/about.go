package metrics

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// kind of a measure, as Prometheus names it.
type kind string

const (
	counter   kind = "counter"   // only grows, from 0 when its model was loaded or the worker started
	gauge     kind = "gauge"     // is as it is now
	histogram kind = "histogram" // counts of observations by upper bound, their sum and their number
)

// about is what docs/measures.md says of a measure.
type about struct {
	name   string
	kind   kind
	labels []string
	help   string
}

func (a about) desc() *prometheus.Desc { return prometheus.NewDesc(a.name, a.help, a.labels, nil) }

// labelModel is the label with a model's name.
const labelModel = "model"

// reading is a measure, or one series of it, that is read from a T at each scrape.
type reading[T any] struct {
	name string
	kind kind
	help string
	// label and value tell series of one name apart; both are empty where there is one.
	label, value string
	// read gives the value; unknown leaves the series out.
	read func(T) float64
}

// unknown is the value of a reading that nobody knows.
var unknown = math.NaN()

// about gives the measure, whose series have the label given first, if any, and then their own.
func (r reading[T]) about(first ...string) about {
	a := about{name: r.name, kind: r.kind, help: r.help, labels: first}
	if r.label != "" {
		a.labels = append(a.labels, r.label)
	}
	return a
}

// metric is the series as it is in t; nil when its value is unknown.
func (r reading[T]) metric(t T, first ...string) prometheus.Metric {
	value := r.read(t)
	if math.IsNaN(value) {
		return nil
	}
	of, values, labels := prometheus.GaugeValue, []string(nil), []string(nil)
	if r.kind == counter {
		of = prometheus.CounterValue
	}
	if len(first) > 0 {
		labels, values = append(labels, labelModel), append(values, first...)
	}
	if r.label != "" {
		values = append(values, r.value)
	}
	return prometheus.MustNewConstMetric(r.about(labels...).desc(), of, value, values...)
}
