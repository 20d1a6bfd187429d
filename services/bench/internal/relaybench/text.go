package relaybench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as text, each bar beside its figure.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nclient   %d streams over %d connection(s)\n", r.Machine, r.Streams, r.Connections)
	if r.NoNginx != "" {
		fmt.Fprintf(w, "WITHOUT NGINX  %s\n", r.NoNginx)
	}
	for i := range r.Rates {
		r.Rates[i].table(w)
	}
	fmt.Fprintf(w, "\n%d streams at once: %d failed (bar: 0), %.0f tokens/s, %.4f messages for each token, scheduler RSS %.1f MB\n",
		r.Burst.PeakStreams, r.Burst.Failed, r.Burst.TokensPerSecond, ratio(r.Burst.Messages, r.Burst.Tokens), float64(r.SchedulerRSS)/1e6)
}

func (s *Stage) table(w io.Writer) {
	fmt.Fprintf(w, "\n%.0f tokens a second wanted, %s\n", s.Rate, s.Device)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "through\tCPU us/token\ttokens/s\tmessages/token\tfirst token idle ms p50, p99\tbeside the streams p50\tp99\tworker us/token\n")
	for i := range s.Ways {
		f := &s.Ways[i]
		cpu := fmt.Sprintf("%.2f (%.2f..%.2f)", f.CPUPerToken.Median, f.CPUPerToken.Min, f.CPUPerToken.Max)
		if f.Name == direct {
			cpu = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%.4f\t%.3f, %.3f\t%.3f (%.3f..%.3f)\t%.3f (%.3f..%.3f)\t%.2f\n", f.Name, cpu,
			f.TokensPerSecond.Median, f.MessagesPerToken.Median, f.Idle.P50, f.Idle.P99, f.BusyP50.Median, f.BusyP50.Min, f.BusyP50.Max,
			f.BusyP99.Median, f.BusyP99.Min, f.BusyP99.Max, f.WorkerPerToken.Median)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	for _, b := range s.bars() {
		fmt.Fprintf(w, "%s: %.3f of nginx's, bar 1: %s\n", b.what, b.share, held(b.share <= 1))
	}
}

// bar is one figure of the scheduler as a share of nginx's.
type bar struct {
	what, metric string
	share        float64
}

// bars are what the scheduler is held to; none without nginx.
func (s *Stage) bars() []bar {
	nginx, own := s.way(nginxName), s.way(schedulerName)
	if nginx == nil || own == nil {
		return nil
	}
	return []bar{
		{"CPU for each token", "cpu_of_nginx", own.CPUPerToken.Median / nginx.CPUPerToken.Median},
		{"first token idle, p50", "idle_p50_of_nginx", own.Idle.P50 / nginx.Idle.P50},
		{"first token idle, p99", "idle_p99_of_nginx", own.Idle.P99 / nginx.Idle.P99},
		{"first token beside the streams, p50", "busy_p50_of_nginx", own.BusyP50.Median / nginx.BusyP50.Median},
		{"first token beside the streams, p99", "busy_p99_of_nginx", own.BusyP99.Median / nginx.BusyP99.Median},
	}
}

func held(ok bool) string {
	if ok {
		return "held"
	}
	return "MISSED"
}

// Figure is a metric of the row that a rate is, as 20000: cpu_us of the scheduler for each token, and its shares of nginx's
// figures cpu_of_nginx, idle_p50_of_nginx, idle_p99_of_nginx, busy_p50_of_nginx, busy_p99_of_nginx; or failed of the row burst.
func (r *Report) Figure(row, metric string) (float64, bool) {
	if row == "burst" && metric == "failed" {
		return float64(r.Burst.Failed), true
	}
	for i := range r.Rates {
		s := &r.Rates[i]
		if fmt.Sprintf("%.0f", s.Rate) != row {
			continue
		}
		if own := s.way(schedulerName); metric == "cpu_us" && own != nil {
			return own.CPUPerToken.Median, true
		}
		for _, b := range s.bars() {
			if b.metric == metric {
				return b.share, true
			}
		}
	}
	return 0, false
}
