package replay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/bench/internal/trace"
)

// A machine that is busier than maxBusy, or on which calls leave later than maxLate at the 99th percentile, disturbs what it
// measures.
const (
	maxBusy = 0.8
	maxLate = 20.0 // ms
)

// Report is what a run found.
type Report struct {
	Machine     machine.Facts `json:"machine"`
	Requests    int           `json:"requests"`
	Prompt      int           `json:"prompt_tokens"` // of the trace, all together
	Span        float64       `json:"trace_seconds"`
	Reusable    float64       `json:"reusable"` // share of the prompts that one endless cache would have
	Workers     int           `json:"workers"`
	Cache       int           `json:"cache_tokens"` // of the trace, each worker's
	Load        float64       `json:"load"`
	Scale       Scale         `json:"scale"`
	PrefillRate float64       `json:"prefill_tokens_per_second"` // of the trace, each worker's
	Device      string        `json:"device"`
	Flags       []string      `json:"flags"` // of workers
	Rows        []Result      `json:"rows"`
	Compared    Comparison    `json:"compared"`
	// Floors are set by the caller.
	Floors *floor.Verdict `json:"floors,omitempty"`
}

// Result is one row. Times are the replay's; times the scale's speed they are the trace's.
type Result struct {
	Row     string        `json:"row"`
	OK      uint64        `json:"ok"`
	Failed  int           `json:"failed"`
	First   stats.Summary `json:"first_token"`
	HitRate float64       `json:"hit_rate"` // cached tokens of all prompt tokens, as the workers tell
	// Foretold is the same by the oracle's own books: near HitRate where it knew the caches.
	Foretold *float64      `json:"foretold,omitempty"`
	Late     stats.Summary `json:"late"` // calls behind their times
	Use      Use           `json:"use"`
	Errors   []string      `json:"errors,omitempty"`
}

// Use is what a row took of the machine.
type Use struct {
	Seconds    float64 `json:"seconds"`
	Busy       float64 `json:"busy"`             // share of all processors' time, whoever had it
	Schedulers float64 `json:"schedulers_cores"` // processors that the programs kept busy, on average
	Workers    float64 `json:"workers_cores"`
	Own        float64 `json:"own_cores"` // of this one
}

// Comparison is what the rows say of each other; nil where a row was not measured.
type Comparison struct {
	Speedup     *float64 `json:"speedup,omitempty"`       // mean first token of round robin over a scheduler's
	HitOfOracle *float64 `json:"hit_of_oracle,omitempty"` // hit rates
	TwoOfOne    *float64 `json:"two_of_one,omitempty"`    // hit rates
	UniqueLeast *float64 `json:"unique_of_least,omitempty"`
}

func newReport(c *Config, requests []trace.Request) *Report {
	r := &Report{
		Machine: machine.Look(), Requests: len(requests), Span: requests[len(requests)-1].At.Seconds(), Reusable: reusable(requests),
		Workers: c.Workers, Cache: c.cacheTokens() * c.Scale.Shrink, Load: c.Load, Scale: c.Scale,
		PrefillRate: 1 / c.prefill(requests).Seconds(), Device: c.device(requests), Flags: c.flags(),
	}
	for _, request := range requests {
		r.Prompt += request.Prompt
	}
	return r
}

// result is what a player found.
func (p *player) result(r row, use Use) *Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &Result{
		Row: r.name, OK: p.first.Count(), First: p.first.Summary(), HitRate: share(p.cached, p.prompt), Late: p.late.Summary(), Use: use,
	}
	if r.schedulers == 0 && r.rule == oracle {
		foretold := share(p.predicted, p.prompt)
		out.Foretold = &foretold
	}
	for kind, n := range p.failed {
		out.Failed += n
		out.Errors = append(out.Errors, fmt.Sprintf("%d x %s %s: %s", n, kind.code, kind.reason, p.example[kind]))
	}
	slices.Sort(out.Errors)
	return out
}

func share(part, whole int) float64 { return float64(part) / float64(max(whole, 1)) }

// compare fills Compared.
func (r *Report) compare() {
	mean := func(x *Result) float64 { return x.First.Mean }
	hits := func(x *Result) float64 { return x.HitRate }
	r.Compared = Comparison{
		Speedup: r.ratio(mean, traceInTurn, oneScheduler), HitOfOracle: r.ratio(hits, oneScheduler, traceOracle),
		TwoOfOne: r.ratio(hits, twoSchedulers, oneScheduler), UniqueLeast: r.ratio(mean, uniqueOne, uniqueLeast),
	}
}

// ratio is a figure of one row over that of another.
func (r *Report) ratio(figure func(*Result) float64, over, under string) *float64 {
	a, b := r.row(over), r.row(under)
	if a == nil || b == nil || figure(b) == 0 {
		return nil
	}
	ratio := figure(a) / figure(b)
	return &ratio
}

func (r *Report) row(name string) *Result {
	if i := slices.IndexFunc(r.Rows, func(x Result) bool { return x.Row == name }); i >= 0 {
		return &r.Rows[i]
	}
	return nil
}

// check is why the run says nothing, or nil.
func (r *Report) check() error {
	var busy []string
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Failed > 0 || x.OK != uint64(r.Requests) {
			return fmt.Errorf("%w: %s: %d of %d did", ErrFailed, x.Row, x.OK, r.Requests)
		}
		if x.Use.Busy > maxBusy || x.Late.P99 > maxLate {
			busy = append(busy, fmt.Sprintf("%s: processors %.0f %% busy, calls %.1f ms late at p99", x.Row, 100*x.Use.Busy, x.Late.P99))
		}
	}
	if len(busy) > 0 {
		return fmt.Errorf("%w:\n  %s", ErrSaturated, strings.Join(busy, "\n  "))
	}
	return nil
}

// Figure is a metric of a row (mean_ms, p50_ms, p99_ms, hit_rate) or of the row compared (speedup, hit_of_oracle, two_of_one,
// unique_of_least).
func (r *Report) Figure(name, metric string) (float64, bool) {
	if name == comparisonsRow {
		v := map[string]*float64{
			"speedup": r.Compared.Speedup, "hit_of_oracle": r.Compared.HitOfOracle, "two_of_one": r.Compared.TwoOfOne,
			"unique_of_least": r.Compared.UniqueLeast,
		}[metric]
		if v == nil {
			return 0, false
		}
		return *v, true
	}
	x := r.row(name)
	if x == nil {
		return 0, false
	}
	v, ok := map[string]float64{
		"mean_ms": x.First.Mean, "p50_ms": x.First.P50, "p99_ms": x.First.P99, "hit_rate": x.HitRate,
	}[metric]
	return v, ok
}
