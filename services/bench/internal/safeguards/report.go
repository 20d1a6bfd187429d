package safeguards

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// barCost is what all safeguards together may add to the processor time of a token, as a share of it.
const barCost = 0.25

// Report is what a run found.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Streams int           `json:"streams"`
	Tokens  int           `json:"tokens"` // of each request
	Device  string        `json:"device"`
	Rows    []Row         `json:"rows"` // Bare is the first, All the last
}

// Row is one way to run the programs. Spreads are over rounds.
type Row struct {
	Name            string       `json:"name"`
	Scheduler       stats.Spread `json:"scheduler_cpu_us_per_token"`
	Worker          stats.Spread `json:"worker_cpu_us_per_token"`
	Cost            stats.Spread `json:"cost"` // of both, as a share of what both take bare in the same round
	TokensPerSecond stats.Spread `json:"tokens_per_second"`
}

// turn is one row in one round: processor time for each token in microseconds, tokens a second.
type turn struct{ scheduler, worker, rate float64 }

// sum sums up the turns of a row; bare are those of the first.
func sum(name string, all, bare []turn) Row {
	spread := func(figure func(i int) float64) stats.Spread {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = figure(i)
		}
		return stats.SpreadOf(values)
	}
	return Row{
		Name:      name,
		Scheduler: spread(func(i int) float64 { return all[i].scheduler }), Worker: spread(func(i int) float64 { return all[i].worker }),
		Cost: spread(func(i int) float64 {
			return (all[i].scheduler+all[i].worker)/(bare[i].scheduler+bare[i].worker) - 1
		}),
		TokensPerSecond: spread(func(i int) float64 { return all[i].rate }),
	}
}

// Print writes the report as text, the bar beside its figure.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nclient   %d streams at once, %d tokens a request, %s\n\n", r.Machine, r.Streams, r.Tokens, r.Device)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "safeguards\tscheduler us/token\tworker us/token\tmore than bare\ttokens/s\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		cost := "-"
		if row.Name != Bare {
			cost = fmt.Sprintf("%+.1f %% (%+.1f..%+.1f)", 100*row.Cost.Median, 100*row.Cost.Min, 100*row.Cost.Max)
		}
		fmt.Fprintf(table, "%s\t%.2f (%.2f..%.2f)\t%.2f (%.2f..%.2f)\t%s\t%.0f\n", row.Name, row.Scheduler.Median, row.Scheduler.Min, row.Scheduler.Max,
			row.Worker.Median, row.Worker.Min, row.Worker.Max, cost, row.TokensPerSecond.Median)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	if cost, ok := r.Figure(All, "cost"); ok {
		verdict := "held"
		if cost > barCost {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "all together: %+.1f %%, bar %+.0f %%: %s\n", 100*cost, 100*barCost, verdict)
	}
}

// Figure is a metric of a row: cost, a share; cpu_us, of scheduler and worker for each token.
func (r *Report) Figure(row, metric string) (float64, bool) {
	for i := range r.Rows {
		if r.Rows[i].Name != row {
			continue
		}
		switch metric {
		case "cost":
			return r.Rows[i].Cost.Median, true
		case "cpu_us":
			return r.Rows[i].Scheduler.Median + r.Rows[i].Worker.Median, true
		}
	}
	return 0, false
}
