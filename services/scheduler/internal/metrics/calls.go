package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// maxModels bounds the models that have series of their own.
const maxModels = 512

// Labels.
const (
	labelModel = "model"
	labelCode  = "code"
	labelKind  = "kind"
)

// Histogram bounds: waits from 1 ms to 5 min, responses from 10 ms to 1 h.
var (
	waits  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	wholes = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600}
)

// kinds are the label values of continuations.
var kinds = map[relay.Continuation]string{
	relay.Retried: "retried", relay.Resumed: "resumed", relay.Inexact: "inexact", relay.Moved: "moved", relay.Lost: "lost",
}

// callMetrics are the metrics that calls update.
type callMetrics struct {
	tokens, requests, again *prometheus.CounterVec
	wait, firstToken, whole *prometheus.HistogramVec
	running                 *prometheus.GaugeVec

	descriptions []monitor.Metric
	vecs         []vec

	mu     sync.RWMutex
	models map[string]*series // guarded by mu; models that had a call
	rest   *series            // guarded by mu; models beyond the bound; nil if there were none
}

// vec is a metric with series for each model.
type vec interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

func newCallMetrics() *callMetrics {
	t := &callMetrics{models: map[string]*series{}}
	note := func(name string, k monitor.Kind, help string, own []string) []string {
		labels := append([]string{labelModel}, own...)
		t.descriptions = append(t.descriptions, monitor.Metric{Name: name, Kind: k, Help: help, Labels: labels})
		return labels
	}
	counter := func(name, help string, own ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, note(name, monitor.Counter, help, own))
		t.vecs = append(t.vecs, v)
		return v
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			note(name, monitor.Histogram, help, nil))
		t.vecs = append(t.vecs, v)
		return v
	}
	t.tokens = counter("millrace_scheduler_tokens_total", "Tokens relayed.")
	t.requests = counter("millrace_scheduler_requests_total",
		"Generate calls that had a slot on a worker, by the code that they ended with.", labelCode)
	t.again = counter("millrace_scheduler_failovers_total",
		"Ends of attempts that were not the call's. retried: sent again from the beginning; resumed: went on at another worker; inexact: so, in "+
			"another class; moved: resumed because the worker drains; lost: not at all.", labelKind)
	t.wait = histogram("millrace_scheduler_queue_wait_seconds",
		"Time of a Generate call from its arrival to its first slot on a worker, a load of its model included.", waits)
	t.firstToken = histogram("millrace_scheduler_first_token_seconds", "Time of a Generate call from its arrival to its first token.", waits)
	t.whole = histogram("millrace_scheduler_request_seconds",
		"Time of a Generate call from its arrival to its end; those that did not end well are not in it.", wholes)
	const running, helpRunning = "millrace_scheduler_running_requests", "Generate calls that have had a slot on a worker and have not ended."
	t.running = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: running, Help: helpRunning}, note(running, monitor.Gauge, helpRunning, nil))
	t.vecs = append(t.vecs, t.running)
	return t
}

// series are the series of one model. A call looks them up once.
type series struct {
	calls                   *callMetrics
	gone                    bool // guarded by callMetrics.mu
	tokens                  prometheus.Counter
	requests                *prometheus.CounterVec // by code
	again                   map[relay.Continuation]prometheus.Counter
	wait, firstToken, whole prometheus.Observer
	running                 prometheus.Gauge
}

// newSeries returns the series of a model, at 0.
func (t *callMetrics) newSeries(model string) *series {
	model = monitor.Text(model)
	s := &series{
		calls: t, tokens: t.tokens.WithLabelValues(model), requests: t.requests.MustCurryWith(prometheus.Labels{labelModel: model}),
		wait: t.wait.WithLabelValues(model), firstToken: t.firstToken.WithLabelValues(model), whole: t.whole.WithLabelValues(model),
		running: t.running.WithLabelValues(model), again: map[relay.Continuation]prometheus.Counter{},
	}
	for k, name := range kinds {
		s.again[k] = t.again.WithLabelValues(model, name)
	}
	s.requests.WithLabelValues(codes.OK.String())
	return s
}

// of returns the series of a model that has a call.
func (t *callMetrics) of(model string) *series {
	t.mu.RLock()
	s := t.models[model]
	t.mu.RUnlock()
	if s != nil {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.models[model] != nil:
		return t.models[model]
	case len(t.models) < maxModels:
		t.models[model] = t.newSeries(model)
		return t.models[model]
	case t.rest == nil:
		t.rest = t.newSeries(monitor.Rest)
	}
	return t.rest
}

// sweep deletes the series of models that no worker has.
func (t *callMetrics) sweep(has func(model string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for model, s := range t.models {
		if has(model) {
			continue
		}
		s.gone = true
		delete(t.models, model)
		for _, v := range t.vecs {
			v.DeletePartialMatch(prometheus.Labels{labelModel: monitor.Text(model)})
		}
	}
}

// Placed implements relay.Observer.
func (t *callMetrics) Placed(model string, waited time.Duration) relay.CallObserver {
	s := t.of(model)
	s.wait.Observe(waited.Seconds())
	s.running.Inc()
	return s
}

// FirstToken implements relay.CallObserver, like the following methods.
func (s *series) FirstToken(sinceArrival time.Duration) { s.firstToken.Observe(sinceArrival.Seconds()) }

func (s *series) Tokens(n int64) { s.tokens.Add(float64(max(n, 0))) }

func (s *series) Continued(a relay.Continuation) {
	if c := s.again[a]; c != nil {
		c.Inc()
	}
}

func (s *series) Ended(code codes.Code, took time.Duration) {
	s.running.Dec()
	if code == codes.OK {
		s.whole.Observe(took.Seconds())
	}
	s.calls.mu.RLock()
	defer s.calls.mu.RUnlock()
	if !s.gone { // else a deleted series would reappear and stay
		s.requests.WithLabelValues(monitor.Code(code)).Inc()
	}
}

var (
	_ relay.Observer     = (*callMetrics)(nil)
	_ relay.CallObserver = (*series)(nil)
)
