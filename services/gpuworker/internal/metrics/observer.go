package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/monitor"
)

// Upper bounds of histograms. All are of the classic kind: to observe one is a handful of atomic additions without a lock, where
// the native kind may wait for whoever reads it.
var (
	// gaps resolve what a reader of a stream sees, and steps: 1 ms to 1 min, closest where 5 to 60 ms is promised.
	gaps = []float64{.001, .002, .003, .005, .0075, .01, .015, .02, .03, .04, .06, .08, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// waits resolve what comes before the first token, and ends: 1 ms to 5 min.
	waits = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	// wholes resolve answers: 10 ms to 1 h.
	wholes = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600}
	// sequencesOf and tokensOf are of a step.
	sequencesOf = prometheus.ExponentialBuckets(1, 2, 11)
	tokensOf    = prometheus.ExponentialBuckets(1, 2, 17)
	// stepsOf are of a cancelled sequence: no more than those in flight are right.
	stepsOf = []float64{0, 1, 2, 3, 4, 8}
)

// told are the measures that step loops tell.
type told struct {
	queueWait, firstToken, nextToken, whole, step, freedAfter *prometheus.HistogramVec
	sequences, tokens, freedSteps                             *prometheus.HistogramVec
	preemptions, finished, admitted, requests, resumed        *prometheus.CounterVec

	abouts []monitor.About
	vecs   []vec
}

// vec is a measure with a series for each model.
type vec interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

func newTold() *told {
	t := &told{}
	t.queueWait = t.histogram("millrace_queue_wait_seconds",
		"Time of a sequence from its arrival to its first place in the batch.", waits)
	t.firstToken = t.histogram("millrace_first_token_seconds",
		"Time of a sequence from its arrival at the step loop, its text tokenised, to its first token.", waits)
	t.nextToken = t.histogram("millrace_inter_token_seconds", "Time from one token of a sequence to its next.", gaps)
	t.whole = t.histogram("millrace_request_seconds",
		"Time of a Generate call from its arrival at the worker to its end; those that did not end well are not in it.", wholes)
	t.step = t.histogram("millrace_step_seconds", "Time of a step on the device.", gaps)
	t.sequences = t.histogram("millrace_step_sequences", "Sequences in a step: the size of the batch.", sequencesOf)
	t.tokens = t.histogram("millrace_step_tokens", "Tokens in a step, of prompts and of sequences that decode.", tokensOf)
	t.freedAfter = t.histogram("millrace_cancel_to_free_seconds",
		"Time from a sequence's cancellation until its KV blocks were free.", waits)
	t.freedSteps = t.histogram("millrace_cancel_to_free_steps",
		"Steps that ended between a sequence's cancellation and the moment when its KV blocks were free; at most those in flight, 2.",
		stepsOf)
	t.preemptions = t.counter("millrace_preemptions_total",
		"Times that a sequence lost its place, by what becomes of its KV blocks: recompute, or swap to host memory.", labelKind)
	t.finished = t.counter("millrace_finished_sequences_total",
		"Sequences that came to their end. stop: by a token or a text that ends them; length: by as many tokens as may be.", labelReason)
	t.requests = t.counter("millrace_requests_total", "Generate calls that had their model, by the code that they ended with.", labelCode)
	t.resumed = t.counter("millrace_resumed_requests_total", "Of these, those that went on with a stream that had begun elsewhere.")
	t.admitted = t.counter("millrace_admitted_prompt_tokens_total",
		"Prompt tokens of sequences that got their first place, those taken from the prefix cache counted.")
	return t
}

// labelModel is the label with a model's name, labelKind that with the kind of a preemption, labelReason with why a sequence ended,
// labelCode with how a call did.
const (
	labelModel  = "model"
	labelKind   = "kind"
	labelReason = "reason"
	labelCode   = "code"
)

var preemptionKinds = map[batch.Preemption]string{batch.Recompute: "recompute", batch.Swap: "swap"}

var reasons = map[batch.Reason]string{batch.Stop: "stop", batch.Length: "length"}

func (t *told) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{labelModel})
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, monitor.About{Name: name, Kind: monitor.Histogram, Help: help, Labels: []string{labelModel}})
	return v
}

func (t *told) counter(name, help string, labels ...string) *prometheus.CounterVec {
	labels = append([]string{labelModel}, labels...)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, monitor.About{Name: name, Kind: monitor.Counter, Help: help, Labels: labels})
	return v
}

// drop ends every series of a model.
func (t *told) drop(model string) {
	model = monitor.Text(model)
	for _, v := range t.vecs {
		v.DeletePartialMatch(prometheus.Labels{labelModel: model})
	}
}

// of gives a model's series, from 0.
func (t *told) of(model string) *observer {
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

// observer is a model's series, found once: what its loop tells is added without looking anything up.
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
	if o := m.observers[model]; o != nil && o.finished[r] != nil {
		o.finished[r].Inc()
	}
}

// Ended implements server.Observer.
func (m *Metrics) Ended(model string, code codes.Code, took time.Duration, resumed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.observers[model]
	if o == nil { // it is gone, and its series with it
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
