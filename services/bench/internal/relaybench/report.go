package relaybench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Bars of the scheduler.
const (
	barCPU        = 20.0  // us of processor time for each relayed token
	barFirstToken = 500.0 // us added to the first token, p50
)

// Report is what a run found.
type Report struct {
	Machine     machine.Facts `json:"machine"`
	Device      string        `json:"device"`
	Connections int           `json:"connections"`
	// Steady is the stage of many streams, through the scheduler.
	Steady        load.Report `json:"steady"`
	RelayedTokens uint64      `json:"relayed_tokens"` // of Steady and of the first tokens taken beside it
	SchedulerCPU  float64     `json:"scheduler_cpu_seconds"`
	WorkerCPU     float64     `json:"worker_cpu_seconds"`
	CPUPerToken   float64     `json:"scheduler_cpu_us_per_token"`
	Idle          FirstToken  `json:"first_token_idle"`
	Busy          FirstToken  `json:"first_token_busy"` // beside Steady
	Burst         load.Report `json:"burst"`
	SchedulerRSS  uint64      `json:"scheduler_rss_bytes"` // after the burst
}

// FirstToken compares the two ways, taken in turn.
type FirstToken struct {
	Worker    stats.Summary `json:"worker"`
	Scheduler stats.Summary `json:"scheduler"`
	AddedP50  float64       `json:"added_p50_us"`
}

func firstToken(worker, scheduler *stats.Histogram) FirstToken {
	return FirstToken{
		Worker: worker.Summary(), Scheduler: scheduler.Summary(),
		AddedP50: float64(scheduler.Quantile(0.5)-worker.Quantile(0.5)) / 1e3,
	}
}

// Print writes the report as text, each bar beside its figure.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nworker   %s\nclient   %d connection(s)\n\n", r.Machine, r.Device, r.Connections)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "what\tfigure\tbar\tremarks\n")
	fmt.Fprintf(table, "scheduler CPU for each relayed token\t%.2f us\t<= %.0f us\tat %.0f tokens/s over %d streams\n",
		r.CPUPerToken, barCPU, r.Steady.TokensPerSecond, r.Steady.PeakStreams)
	fmt.Fprintf(table, "messages for each token\t%.4f\t1\t%d tokens, %d messages\n",
		ratio(r.Steady.Messages, r.Steady.Tokens), r.Steady.Tokens, r.Steady.Messages)
	for _, f := range []struct {
		name string
		of   FirstToken
	}{{"idle", r.Idle}, {"beside the streams", r.Busy}} {
		fmt.Fprintf(table, "first token, p50 added, %s\t%.0f us\t< %.0f us\tworker %.3f ms, scheduler %.3f ms, %d pairs\n",
			f.name, f.of.AddedP50, barFirstToken, f.of.Worker.P50, f.of.Scheduler.P50, f.of.Scheduler.Count)
	}
	fmt.Fprintf(table, "%d streams at once, failed\t%d\t0\t%.0f tokens/s, %.4f messages for each token, scheduler RSS %.1f MB\n",
		r.Burst.PeakStreams, r.Burst.Failed, r.Burst.TokensPerSecond, ratio(r.Burst.Messages, r.Burst.Tokens), float64(r.SchedulerRSS)/1e6)
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	fmt.Fprintf(w, "\nworker CPU for each token %.2f us; inter-token p50 %.3f ms, p99 %.3f ms\n",
		1e6*r.WorkerCPU/float64(max(r.RelayedTokens, 1)), r.Steady.InterToken.P50, r.Steady.InterToken.P99)
	for _, e := range append(r.Steady.Errors, r.Burst.Errors...) {
		fmt.Fprintf(w, "\n%d x %s %s: %s\n", e.Count, e.Code, e.Reason, e.Example)
	}
}

func ratio(a, b uint64) float64 { return float64(a) / float64(max(b, 1)) }
