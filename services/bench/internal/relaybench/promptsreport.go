package relaybench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Bars of what the scheduler may add to a first token, in milliseconds.
const (
	barAddedP50 = 2
	barAddedP99 = 20
)

// PromptsReport is what Prompts found.
type PromptsReport struct {
	Machine    machine.Facts `json:"machine"`
	Callers    int           `json:"callers"`
	Workers    int           `json:"workers"`
	Bytes      int           `json:"prompt_bytes"`
	FirstToken float64       `json:"first_token_ms"` // of a worker, as wanted
	Kinds      []PromptKind  `json:"kinds"`
}

// PromptKind is what was found for one kind of prompt. Spreads are over rounds, and what is added is the difference within each.
type PromptKind struct {
	Kind       string       `json:"kind"`
	Calls      uint64       `json:"calls"` // through the scheduler, in all rounds
	DirectP50  stats.Spread `json:"direct_p50_ms"`
	DirectP99  stats.Spread `json:"direct_p99_ms"`
	ThroughP50 stats.Spread `json:"through_p50_ms"`
	ThroughP99 stats.Spread `json:"through_p99_ms"`
	AddedP50   stats.Spread `json:"added_p50_ms"`
	AddedP99   stats.Spread `json:"added_p99_ms"`
	CPU        stats.Spread `json:"scheduler_cpu_ms_per_call"`
}

// promptRound is one turn of each way.
type promptRound struct {
	direct, through stats.Histogram
	cpu             time.Duration // of the scheduler, while the calls went through it
}

// sumPrompts sums up the rounds of a kind.
func sumPrompts(kind string, rounds []promptRound) PromptKind {
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	spread := func(figure func(r *promptRound) float64) stats.Spread {
		values := make([]float64, len(rounds))
		for i := range rounds {
			values[i] = figure(&rounds[i])
		}
		return stats.SpreadOf(values)
	}
	quantiles := func(q float64) (direct, through, added stats.Spread) {
		return spread(func(r *promptRound) float64 { return ms(r.direct.Quantile(q)) }),
			spread(func(r *promptRound) float64 { return ms(r.through.Quantile(q)) }),
			spread(func(r *promptRound) float64 { return ms(r.through.Quantile(q) - r.direct.Quantile(q)) })
	}
	k := PromptKind{Kind: kind}
	k.DirectP50, k.ThroughP50, k.AddedP50 = quantiles(0.5)
	k.DirectP99, k.ThroughP99, k.AddedP99 = quantiles(0.99)
	k.CPU = spread(func(r *promptRound) float64 { return ms(r.cpu) / float64(max(r.through.Count(), 1)) })
	for i := range rounds {
		k.Calls += rounds[i].through.Count()
	}
	return k
}

// Print writes the report as text, each bar beside its figure.
func (r *PromptsReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nclient   %d callers in a closed loop, prompts of %d bytes (ids: %d)\n"+
		"workers  %d, with a place for each caller, %.0f ms to a first token\n\n", r.Machine,
		r.Callers, r.Bytes, max(r.Bytes/bytesPerID, 1), r.Workers, r.FirstToken)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "prompts\tcalls\tfirst token ms, worker p50\tp99\tscheduler p50\tp99\tadded p50\tadded p99\tscheduler CPU ms/call\n")
	for i := range r.Kinds {
		k := &r.Kinds[i]
		fmt.Fprintf(table, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f (%.2f..%.2f)\t%.2f (%.2f..%.2f)\t%.2f\n", k.Kind, k.Calls, k.DirectP50.Median,
			k.DirectP99.Median, k.ThroughP50.Median, k.ThroughP99.Median, k.AddedP50.Median, k.AddedP50.Min, k.AddedP50.Max,
			k.AddedP99.Median, k.AddedP99.Min, k.AddedP99.Max, k.CPU.Median)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	for i := range r.Kinds {
		k := &r.Kinds[i]
		fmt.Fprintf(w, "%s, added p50: %.2f ms, bar < %d: %s\n", k.Kind, k.AddedP50.Median, barAddedP50, held(k.AddedP50.Median < barAddedP50))
		fmt.Fprintf(w, "%s, added p99: %.2f ms, bar < %d: %s\n", k.Kind, k.AddedP99.Median, barAddedP99, held(k.AddedP99.Median < barAddedP99))
	}
}

// Figure is a metric of the row that a kind of prompts is, ids or text: added_p50_ms, added_p99_ms, cpu_ms.
func (r *PromptsReport) Figure(row, metric string) (float64, bool) {
	for i := range r.Kinds {
		k := &r.Kinds[i]
		if k.Kind != row {
			continue
		}
		switch metric {
		case "added_p50_ms":
			return k.AddedP50.Median, true
		case "added_p99_ms":
			return k.AddedP99.Median, true
		case "cpu_ms":
			return k.CPU.Median, true
		}
	}
	return 0, false
}
