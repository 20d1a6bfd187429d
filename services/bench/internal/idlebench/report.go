package idlebench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// barCores is what following 300 idle workers may take of one processor.
const barCores = 0.1

// Report is what a run found.
type Report struct {
	Machine   machine.Facts  `json:"machine"`
	WorkerRSS uint64         `json:"worker_rss_bytes"` // of one of them
	Lines     []Line         `json:"lines"`
	Floors    *floor.Verdict `json:"floors,omitempty"` // set by the caller
}

// Line is one size.
type Line struct {
	Workers     int     `json:"workers"`
	Seconds     float64 `json:"seconds"` // watched
	Cores       float64 `json:"scheduler_cores"`
	PerWorker   float64 `json:"scheduler_us_per_worker_second"`
	RSS         uint64  `json:"scheduler_rss_bytes"`
	WorkerCores float64 `json:"worker_cores"` // of one worker, on average
	Busy        float64 `json:"busy"`         // share of all processors' time, whoever had it
}

// Figure is a metric of the row idle/WORKERS: cores, us_per_worker_second, rss_mb.
func (r *Report) Figure(row, metric string) (float64, bool) {
	for _, l := range r.Lines {
		if row != fmt.Sprintf("idle/%d", l.Workers) {
			continue
		}
		v, ok := map[string]float64{
			"cores": l.Cores, "us_per_worker_second": l.PerWorker, "rss_mb": float64(l.RSS) / 1e6,
		}[metric]
		return v, ok
	}
	return 0, false
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nworkers  processes on the sim engine with one model, idle, %.0f MB each\n\n", r.Machine, float64(r.WorkerRSS)/1e6)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "workers\tscheduler, of one core\tus a second for each worker\tscheduler RSS\ta worker, of one core\tall processors busy\t\n")
	for _, l := range r.Lines {
		fmt.Fprintf(table, "%d\t%.2f %%\t%.0f\t%.1f MB\t%.3f %%\t%.0f %%\t\n", l.Workers, 100*l.Cores, l.PerWorker, float64(l.RSS)/1e6, 100*l.WorkerCores,
			100*l.Busy)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	fmt.Fprintf(w, "\nbar      300 workers: < %.0f %% of one core\n", 100*barCores)
	r.Floors.Print(w)
}
