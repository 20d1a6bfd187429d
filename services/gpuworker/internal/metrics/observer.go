package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/gpuworker/batch"
)

// Upper bounds of histograms. All are of the classic kind: to observe one is a handful of atomic additions without a lock, where
// the native kind may wait for whoever reads it.
var (
	// gaps resolve what a reader of a stream sees, and steps: 1 ms to 1 min, closest where 5 to 60 ms is promised.
	gaps = []float64{.001, .002, .003, .005, .0075, .01, .015, .02, .03, .04, .06, .08, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// waits resolve what comes before the first token, and ends: 1 ms to 5 min.
	waits = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	// sequencesOf and tokensOf are of a step.
	sequencesOf = prometheus.ExponentialBuckets(1, 2, 11)
	tokensOf    = prometheus.ExponentialBuckets(1, 2, 17)
	// stepsOf are of a cancelled sequence: no more than those in flight are right.
	stepsOf = []float64{0, 1, 2, 3, 4, 8}
)

// told are the measures that step loops tell.
type told struct {
	queueWait, firstToken, nextToken, step, freedAfter *prometheus.HistogramVec
	sequences, tokens, freedSteps                      *prometheus.HistogramVec
	preemptions                                        *prometheus.CounterVec

	abouts []about
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
	return t
}

// labelKind is the label with the kind of a preemption.
const labelKind = "kind"

var preemptionKinds = map[batch.Preemption]string{batch.Recompute: "recompute", batch.Swap: "swap"}

func (t *told) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{labelModel})
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, about{name: name, kind: histogram, help: help, labels: []string{labelModel}})
	return v
}

func (t *told) counter(name, help string, labels ...string) *prometheus.CounterVec {
	labels = append([]string{labelModel}, labels...)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	t.vecs = append(t.vecs, v)
	t.abouts = append(t.abouts, about{name: name, kind: counter, help: help, labels: labels})
	return v
}

// drop ends every series of a model.
func (t *told) drop(model string) {
	for _, v := range t.vecs {
		v.DeletePartialMatch(prometheus.Labels{labelModel: model})
	}
}

// of gives a model's series, from 0.
func (t *told) of(model string) *observer {
	o := &observer{
		queueWait: t.queueWait.WithLabelValues(model), firstToken: t.firstToken.WithLabelValues(model),
		nextToken: t.nextToken.WithLabelValues(model), step: t.step.WithLabelValues(model),
		freedAfter: t.freedAfter.WithLabelValues(model), freedSteps: t.freedSteps.WithLabelValues(model),
		sequences: t.sequences.WithLabelValues(model), tokens: t.tokens.WithLabelValues(model),
		preemptions: map[batch.Preemption]prometheus.Counter{},
	}
	for p, kind := range preemptionKinds {
		o.preemptions[p] = t.preemptions.WithLabelValues(model, kind)
	}
	return o
}

// observer is a model's series, found once: what its loop tells is added without looking anything up.
type observer struct {
	queueWait, firstToken, nextToken, step, freedAfter prometheus.Observer
	sequences, tokens, freedSteps                      prometheus.Observer
	preemptions                                        map[batch.Preemption]prometheus.Counter
}

func (o *observer) Admitted(waited time.Duration, _, _ int) { o.queueWait.Observe(waited.Seconds()) }

func (o *observer) Stepped(sequences, promptTokens, decodeTokens int, took time.Duration) {
	o.step.Observe(took.Seconds())
	o.sequences.Observe(float64(sequences))
	o.tokens.Observe(float64(promptTokens + decodeTokens))
}

func (o *observer) FirstToken(sinceArrival time.Duration) {
	o.firstToken.Observe(sinceArrival.Seconds())
}

func (o *observer) NextToken(gap time.Duration) { o.nextToken.Observe(gap.Seconds()) }

func (o *observer) Preempted(p batch.Preemption) {
	if c := o.preemptions[p]; c != nil {
		c.Inc()
	}
}

func (o *observer) Freed(after time.Duration, steps int) {
	o.freedAfter.Observe(after.Seconds())
	o.freedSteps.Observe(float64(steps))
}

var _ batch.Observer = (*observer)(nil)
