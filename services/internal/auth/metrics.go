package auth

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/services/internal/monitor"
)

// maxKeys bounds the keys that have series of their own: the first of the file. The others are
// summed in one.
const maxKeys = 256

// labelKey is the one label of all metrics of keys.
const labelKey = "key"

// keyMetrics are the metrics of a key.
var keyMetrics = []monitor.Reading[Used]{
	{Name: "millrace_key_calls_total", Kind: monitor.Counter, Help: "Calls of the key that its rights and limits let in.",
		Read: func(u Used) float64 { return float64(u.Calls) }},
	{Name: "millrace_key_refused_calls_total", Kind: monitor.Counter, Help: "Calls of the key that were refused because of it: ended, no right, another tenant, a limit.",
		Read: func(u Used) float64 { return float64(u.Refused) }},
	{Name: "millrace_key_running_calls", Kind: monitor.Gauge, Help: "Calls of the key that are under way.",
		Read: func(u Used) float64 { return float64(u.UnderWay) }},
	{Name: "millrace_key_tokens_total", Kind: monitor.Counter, Help: "Tokens of the key's prompts, cached ones too, of answers that it resumes, and those generated for it.",
		Read: func(u Used) float64 { return float64(u.Tokens) }},
}

// Metrics describes the metrics of keys.
func Metrics() []monitor.Metric { return monitor.Metrics(keyMetrics, labelKey) }

// Describe implements prometheus.Collector.
func (g *Guard) Describe(out chan<- *prometheus.Desc) {
	for _, a := range Metrics() {
		out <- a.Desc()
	}
}

// Collect implements prometheus.Collector.
func (g *Guard) Collect(out chan<- prometheus.Metric) {
	all := g.Usage()
	if len(all) > maxKeys {
		rest := Usage{ID: monitor.Rest}
		for _, u := range all[maxKeys:] {
			rest.Calls, rest.Refused, rest.Tokens, rest.UnderWay = rest.Calls+u.Calls, rest.Refused+u.Refused, rest.Tokens+u.Tokens, rest.UnderWay+u.UnderWay
		}
		all = append(all[:maxKeys], rest)
	}
	for _, u := range all {
		for _, r := range keyMetrics {
			r.Send(out, u.Used, []string{labelKey}, u.ID)
		}
	}
}

var _ prometheus.Collector = (*Guard)(nil)
