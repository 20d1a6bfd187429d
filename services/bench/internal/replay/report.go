package replay

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// A run is void if the machine is busier than maxBusy, or if calls start later than maxLate at the
// 99th percentile, because then the times depend on other load.
const (
	maxBusy = 0.8
	maxLate = 20.0 // ms
)

// Report is the result of a run.
type Report struct {
	Machine     proc.Machine `json:"machine"`
	Requests    int          `json:"requests"`
	Prompt      int          `json:"prompt_tokens"` // of the trace, total
	Span        float64      `json:"trace_seconds"`
	Reusable    float64      `json:"reusable"` // share of the prompts that one unlimited cache would have
	Workers     int          `json:"workers"`
	Cache       int          `json:"cache_tokens"` // of the trace, each worker's
	Load        float64      `json:"load"`
	Scale       Scale        `json:"scale"`
	PrefillRate float64      `json:"prefill_tokens_per_second"` // of the trace, each worker's
	Device      string       `json:"device"`
	Flags       []string     `json:"flags"` // of workers
	Rows        []Result     `json:"rows"`
	Compared    Comparison   `json:"compared"`
	// Floors is set by the caller.
	Floors *stats.Verdict `json:"floors,omitempty"`
}

// Result is one row. Times are those of the replay; multiplied by the scale's speed they are the
// trace's.
type Result struct {
	Row     string        `json:"row"`
	OK      uint64        `json:"ok"`
	Failed  int           `json:"failed"`
	First   stats.Summary `json:"first_token"`
	HitRate float64       `json:"hit_rate"` // cached tokens of all prompt tokens, as workers report
	// Foretold is the same by the oracle's own books. It is close to HitRate if they match the
	// caches.
	Foretold *float64      `json:"foretold,omitempty"`
	Late     stats.Summary `json:"late"` // of calls after their due times
	Use      Use           `json:"use"`
	Errors   []string      `json:"errors,omitempty"`
}

// Use is the processor time of a row.
type Use struct {
	Seconds    float64 `json:"seconds"`
	Busy       float64 `json:"busy"`             // share of the time of all processors, by any process
	Schedulers float64 `json:"schedulers_cores"` // processors kept busy, on average
	Workers    float64 `json:"workers_cores"`
	Own        float64 `json:"own_cores"` // of this process
}

// Comparison relates the rows to each other. A member is nil if one of its rows was not measured.
type Comparison struct {
	Speedup     *float64 `json:"speedup,omitempty"`       // mean TTFT of round robin over that of a scheduler
	HitOfOracle *float64 `json:"hit_of_oracle,omitempty"` // hit rates
	TwoOfOne    *float64 `json:"two_of_one,omitempty"`    // hit rates
	UniqueLeast *float64 `json:"unique_of_least,omitempty"`
}

func newReport(c *Config, requests []Request) *Report {
	r := &Report{
		Machine: proc.ThisMachine(), Requests: len(requests), Span: requests[len(requests)-1].Arrival.Seconds(), Reusable: reusable(requests),
		Workers: c.Workers, Cache: c.cacheTokens() * c.Scale.Shrink, Load: c.Load, Scale: c.Scale,
		PrefillRate: 1 / c.prefill(requests).Seconds(), Device: c.device(requests), Flags: c.workerFlags(),
	}
	for _, request := range requests {
		r.Prompt += request.Prompt
	}
	return r
}

// result returns the figures of the row.
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

// compare sets Compared.
func (r *Report) compare() {
	mean := func(x *Result) float64 { return x.First.Mean }
	hits := func(x *Result) float64 { return x.HitRate }
	r.Compared = Comparison{
		Speedup: r.ratio(mean, traceInTurn, oneScheduler), HitOfOracle: r.ratio(hits, oneScheduler, traceOracle),
		TwoOfOne: r.ratio(hits, twoSchedulers, oneScheduler), UniqueLeast: r.ratio(mean, uniqueOne, uniqueLeast),
	}
}

// ratio returns a figure of one row over that of another.
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

// check returns an error if the run is void.
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

// Figure returns a metric of a row (mean_ms, p50_ms, p99_ms, hit_rate) or of the row compared
// (speedup, hit_of_oracle, two_of_one, unique_of_least).
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

// Bars of routing.
const (
	barSpeedup     = 2.0
	barHitOfOracle = 0.95
	barTwoOfOne    = 0.97
	barUnique      = 1.05 // two runs of one rule differ by as much
)

// Print writes the report as text with the bars.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\n", r.Machine)
	fmt.Fprintf(w, "trace    %d requests in %.0f s, %d prompt tokens, of which one endless cache would have %.1f %%\n", r.Requests, r.Span,
		r.Prompt, 100*r.Reusable)
	fmt.Fprintf(w, "workers  %d, each with a cache of %d tokens and %.0f prompt tokens a second: load %.2f if nothing were cached\n",
		r.Workers, r.Cache, r.PrefillRate, r.Load)
	fmt.Fprintf(w, "scale    %d token(s) replayed as 1 and %g s as 1 s, so that workers are %s with %s;\n"+
		"         reports of caches, 250 ms apart, are %.1f s of the trace apart\n\n", r.Scale.Shrink, r.Scale.Speed, r.Device,
		strings.Join(r.Flags, " "), 0.25*r.Scale.Speed)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "row\tfirst token, mean ms\tp50\tp99\tmean, s of the trace\thit rate\tforetold\tfailed\tbusy\tcores of schedulers\tworkers\tthis program\tlate p99 ms\t\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		foretold := "-"
		if x.Foretold != nil {
			foretold = fmt.Sprintf("%.1f %%", 100**x.Foretold)
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.1f %%\t%s\t%d\t%.0f %%\t%.2f\t%.2f\t%.2f\t%.1f\t\n", x.Row, x.First.Mean, x.First.P50, x.First.P99,
			x.First.Mean*r.Scale.Speed/1e3, 100*x.HitRate, foretold, x.Failed, 100*x.Use.Busy, x.Use.Schedulers, x.Use.Workers, x.Use.Own, x.Late.P99)
	}
	_ = table.Flush() // the writer is a terminal or a buffer
	fmt.Fprintln(w)
	table = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "compared\tfigure\tbar\n")
	for _, line := range []struct {
		what string
		is   *float64
		bar  string
	}{
		{"mean first token, round robin over scheduler", r.Compared.Speedup, fmt.Sprintf(">= %g", barSpeedup)},
		{"hit rate, scheduler over oracle", r.Compared.HitOfOracle, fmt.Sprintf(">= %g", barHitOfOracle)},
		{"hit rate, two schedulers over one", r.Compared.TwoOfOne, fmt.Sprintf(">= %g", barTwoOfOne)},
		{"without reuse: mean first token, scheduler over least-loaded", r.Compared.UniqueLeast, fmt.Sprintf("<= %g", barUnique)},
	} {
		if line.is != nil {
			fmt.Fprintf(table, "%s\t%.3f\t%s\n", line.what, *line.is, line.bar)
		}
	}
	_ = table.Flush()
	for i := range r.Rows {
		for _, e := range r.Rows[i].Errors {
			fmt.Fprintf(w, "\n%s: %s\n", r.Rows[i].Row, e)
		}
	}
	r.Floors.Print(w)
}
