package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/monitor"
)

// Upper bounds of histograms. All histograms are classic: an observation is a handful of atomic
// additions, while one of a native histogram may wait for a scrape.
var (
	// gapBuckets are for inter-token latency and steps: 1 ms to 1 min, the finest from 5 to 60 ms,
	// where promises are.
	gapBuckets = []float64{.001, .002, .003, .005, .0075, .01, .015, .02, .03, .04, .06, .08, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// waitBuckets are for times before the first token and after a cancellation: 1 ms to 5 min.
	waitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	// requestBuckets are for whole requests: 10 ms to 1 h.
	requestBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600}
	// sequenceBuckets and tokenBuckets are for the size of a step.
	sequenceBuckets = prometheus.ExponentialBuckets(1, 2, 11)
	tokenBuckets    = prometheus.ExponentialBuckets(1, 2, 17)
	// cancelStepBuckets are for steps after a cancellation: more than those in flight are a defect.
	cancelStepBuckets = []float64{0, 1, 2, 3, 4, 8}
)

// instruments are the metrics that step loops and calls update. All others are read at a scrape.
type instruments struct {
	queueWait, firstToken, nextToken, whole, step, freedAfter *prometheus.HistogramVec
	sequences, tokens, freedSteps                             *prometheus.HistogramVec
	preemptions, finished, admitted, requests, resumed        *prometheus.CounterVec

	abouts []monitor.Metric
	vecs   []vec
}

// vec is a metric with series for each model.
type vec interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

func newInstruments() *instruments {
	t := &instruments{}
	t.queueWait = t.histogram("millrace_queue_wait_seconds",
		"Time of a sequence from its arrival to its first slot in the batch.", waitBuckets)
	t.firstToken = t.histogram("millrace_first_token_seconds",
		"Time of a sequence from its arrival at the step loop, its text tokenised, to its first token.", waitBuckets)
	t.nextToken = t.histogram("millrace_inter_token_seconds", "Time from one token of a sequence to its next.", gapBuckets)
	t.whole = t.histogram("millrace_request_seconds",
		"Time of a Generate call from its arrival at the worker to its end; failed calls are not counted.", requestBuckets)
	t.step = t.histogram("millrace_step_seconds", "Time of a step on the device.", gapBuckets)
	t.sequences = t.histogram("millrace_step_sequences", "Sequences in a step: the size of the batch.", sequenceBuckets)
	t.tokens = t.histogram("millrace_step_tokens", "Tokens in a step, of prompts and of sequences that decode.", tokenBuckets)
	t.freedAfter = t.histogram("millrace_cancel_to_free_seconds",
		"Time from a sequence's cancellation until its KV blocks were free.", waitBuckets)
	t.freedSteps = t.histogram("millrace_cancel_to_free_steps",
		"Steps that ended between a sequence's cancellation and the moment when its KV blocks were free; at most those in flight, 2.",
		cancelStepBuckets)
	t.preemptions = t.counter("millrace_preemptions_total",
		"Preemptions of sequences, by what happens to their KV blocks: recompute, or swap to host memory.", labelKind)
	t.finished = t.counter("millrace_finished_sequences_total",
		"Sequences that finished. stop: at a stop token or text; length: at their last allowed token.", labelReason)
	t.requests = t.counter("millrace_requests_total", "Generate calls whose model was loaded, by the code that they ended with.", labelCode)
	t.resumed = t.counter("millrace_resumed_requests_total", "Of these, calls that resumed a stream that another worker had started.")
	t.admitted = t.counter("millrace_admitted_prompt_tokens_total",
		"Prompt tokens of sequences that got their first slot, including those taken from the prefix cache.")
	return t
}

// Labels.
const (
	labelModel  = "model"
	labelKind   = "kind"   // of a preemption
	labelReason = "reason" // why a sequence finished
	labelCode   = "code"   // with which a call ended
)

var preemptionKinds = map[batch.Preemption]string{batch.Recompute: "recompute", batch.Swap: "swap"}

var reasons = map[batch.Reason]string{batch.Stop: "stop", batch.Length: "length"}

func (t *instruments) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{labelModel})
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, monitor.Metric{Name: name, Kind: monitor.Histogram, Help: help, Labels: []string{labelModel}})
	return v
}

func (t *instruments) counter(name, help string, labels ...string) *prometheus.CounterVec {
	labels = append([]string{labelModel}, labels...)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, monitor.Metric{Name: name, Kind: monitor.Counter, Help: help, Labels: labels})
	return v
}

// drop removes every series of a model.
func (t *instruments) drop(model string) {
	model = monitor.Text(model)
	for _, v := range t.vecs {
		v.DeletePartialMatch(prometheus.Labels{labelModel: model})
	}
}

// observer returns the observer of a model, whose series start at 0.
func (t *instruments) observer(model string) *observer {
	model = monitor.Text(model)
	o := &observer{
		queueWait: t.queueWait.WithLabelValues(model), firstToken: t.firstToken.WithLabelValues(model),
		nextToken: t.nextToken.WithLabelValues(model), step: t.step.WithLabelValues(model),
		freedAfter: t.freedAfter.WithLabelValues(model), freedSteps: t.freedSteps.WithLabelValues(model),
		sequences: t.sequences.WithLabelValues(model), tokens: t.tokens.WithLabelValues(model),
		whole: t.whole.WithLabelValues(model), admitted: t.admitted.WithLabelValues(model),
		resumed: t.resumed.WithLabelValues(model), requests: t.requests.MustCurryWith(prometheus.Labels{labelModel: model}),
		preemptions: map[batch.Preemption]prometheus.Counter{}, finished: map[batch.Reason]prometheus.Counter{},
	}
	for r, reason := range reasons {
		o.finished[r] = t.finished.WithLabelValues(model, reason)
	}
	o.requests.WithLabelValues(codes.OK.String())
	for p, kind := range preemptionKinds {
		o.preemptions[p] = t.preemptions.WithLabelValues(model, kind)
	}
	return o
}

// observer has the series of a model. They are looked up once, so that an update needs no lookup.
type observer struct {
	queueWait, firstToken, nextToken, whole, step, freedAfter prometheus.Observer
	sequences, tokens, freedSteps                             prometheus.Observer
	admitted, resumed                                         prometheus.Counter
	requests                                                  *prometheus.CounterVec // by code
	preemptions                                               map[batch.Preemption]prometheus.Counter
	finished                                                  map[batch.Reason]prometheus.Counter
}

func (o *observer) Admitted(waited time.Duration, prompt, _ int) {
	o.queueWait.Observe(waited.Seconds())
	o.admitted.Add(float64(prompt))
}

func (o *observer) Stepped(sequences, promptTokens, decodeTokens int, took time.Duration) {
	o.step.Observe(took.Seconds())
	o.sequences.Observe(float64(sequences))
	o.tokens.Observe(float64(promptTokens + decodeTokens))
}

func (o *observer) FirstToken(sinceArrival time.Duration) {
	o.firstToken.Observe(sinceArrival.Seconds())
}

func (o *observer) NextToken(gap time.Duration) { o.nextToken.Observe(gap.Seconds()) }

// Finished implements server.Observer.
func (m *Metrics) Finished(model string, r batch.Reason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.mu.observers[model]; o != nil && o.finished[r] != nil {
		o.finished[r].Inc()
	}
}

// Ended implements server.Observer.
func (m *Metrics) Ended(model string, code codes.Code, took time.Duration, resumed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.mu.observers[model]
	if o == nil { // the model was unloaded, and its series ended
		return
	}
	if code == codes.OK {
		o.whole.Observe(took.Seconds())
	}
	o.requests.WithLabelValues(monitor.Code(code)).Inc()
	if resumed {
		o.resumed.Inc()
	}
}

func (o *observer) Preempted(p batch.Preemption) {
	if c := o.preemptions[p]; c != nil {
		c.Inc()
	}
}

func (o *observer) Freed(after time.Duration, steps int) {
	o.freedAfter.Observe(after.Seconds())
	o.freedSteps.Observe(float64(steps))
}

var (
	_ batch.Observer  = (*observer)(nil)
	_ server.Observer = (*Metrics)(nil)
)
