package relay

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is the result of a run.
type Report struct {
	Machine      proc.Machine `json:"machine"`
	NoNginx      string       `json:"no_nginx,omitempty"` // why the scheduler is not compared with nginx
	Streams      int          `json:"streams"`
	Connections  int          `json:"connections"`
	Rates        []Stage      `json:"rates"`
	Burst        load.Report  `json:"burst"`
	SchedulerRSS uint64       `json:"scheduler_rss_bytes"` // after the burst
}

// Stage is one rate.
type Stage struct {
	Rate    float64  `json:"rate"` // wanted, tokens a second
	Device  string   `json:"device"`
	Targets []Target `json:"ways"`
}

// Target is the figures of the worker itself, of nginx or of the scheduler. Spreads are over the
// rounds.
type Target struct {
	Name             string        `json:"name"`
	CPUPerToken      stats.Spread  `json:"cpu_us_per_token"` // of the target
	WorkerPerToken   stats.Spread  `json:"worker_cpu_us_per_token"`
	TokensPerSecond  stats.Spread  `json:"tokens_per_second"`
	MessagesPerToken stats.Spread  `json:"messages_per_token"`
	Idle             stats.Summary `json:"first_token_idle"`
	BusyP50          stats.Spread  `json:"first_token_busy_p50_ms"`
	BusyP99          stats.Spread  `json:"first_token_busy_p99_ms"`
}

// summarise returns the figures of a target from its samples.
func summarise(name string, samples []sample, idle stats.Summary) Target {
	spread := func(figure func(s *sample) float64) stats.Spread {
		values := make([]float64, len(samples))
		for i := range samples {
			values[i] = figure(&samples[i])
		}
		return stats.SpreadOf(values)
	}
	perToken := func(s *sample, used time.Duration) float64 {
		return float64(used.Microseconds()) / float64(max(s.streams.Tokens+s.ttft.Count(), 1))
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	return Target{
		Name: name, Idle: idle,
		CPUPerToken:      spread(func(s *sample) float64 { return perToken(s, s.cpu) }),
		WorkerPerToken:   spread(func(s *sample) float64 { return perToken(s, s.worker) }),
		TokensPerSecond:  spread(func(s *sample) float64 { return s.streams.TokensPerSecond }),
		MessagesPerToken: spread(func(s *sample) float64 { return ratio(s.streams.Messages, s.streams.Tokens) }),
		BusyP50:          spread(func(s *sample) float64 { return ms(s.ttft.Quantile(0.5)) }),
		BusyP99:          spread(func(s *sample) float64 { return ms(s.ttft.Quantile(0.99)) }),
	}
}

func ratio(a, b uint64) float64 { return float64(a) / float64(max(b, 1)) }

// target returns the target of a name; nil if it was not measured.
func (s *Stage) target(name string) *Target {
	for i := range s.Targets {
		if s.Targets[i].Name == name {
			return &s.Targets[i]
		}
	}
	return nil
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nclient   %d streams over %d connection(s)\n", r.Machine, r.Streams, r.Connections)
	if r.NoNginx != "" {
		fmt.Fprintf(w, "WITHOUT NGINX  %s\n", r.NoNginx)
	}
	for i := range r.Rates {
		r.Rates[i].write(w)
	}
	fmt.Fprintf(w, "\n%d streams at once: %d failed (bar: 0), %.0f tokens/s, %.4f messages for each token, scheduler RSS %.1f MB\n",
		r.Burst.PeakStreams, r.Burst.Failed, r.Burst.TokensPerSecond, ratio(r.Burst.Messages, r.Burst.Tokens), float64(r.SchedulerRSS)/1e6)
}

func (s *Stage) write(w io.Writer) {
	fmt.Fprintf(w, "\ntarget %.0f tokens a second, %s\n", s.Rate, s.Device)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "through\tCPU us/token\ttokens/s\tmessages/token\tTTFT idle ms p50, p99\tTTFT loaded p50\tp99\tworker us/token\n")
	for i := range s.Targets {
		f := &s.Targets[i]
		cpu := fmt.Sprintf("%.2f (%.2f..%.2f)", f.CPUPerToken.Median, f.CPUPerToken.Min, f.CPUPerToken.Max)
		if f.Name == workerName {
			cpu = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%.4f\t%.3f, %.3f\t%.3f (%.3f..%.3f)\t%.3f (%.3f..%.3f)\t%.2f\n", f.Name, cpu,
			f.TokensPerSecond.Median, f.MessagesPerToken.Median, f.Idle.P50, f.Idle.P99, f.BusyP50.Median, f.BusyP50.Min, f.BusyP50.Max,
			f.BusyP99.Median, f.BusyP99.Min, f.BusyP99.Max, f.WorkerPerToken.Median)
	}
	_ = table.Flush() // the writer is a terminal or a buffer
	for _, b := range s.bars() {
		verdict := "MISSED"
		if b.share <= 1 {
			verdict = "held"
		}
		fmt.Fprintf(w, "%s: %.3f of nginx's, bar 1: %s\n", b.title, b.share, verdict)
	}
}

// bar is one figure of the scheduler as a share of nginx's. It must not be above 1.
type bar struct {
	title, metric string
	share         float64
}

// bars returns nil without nginx.
func (s *Stage) bars() []bar {
	nginx, scheduler := s.target(nginxName), s.target(schedulerName)
	if nginx == nil || scheduler == nil {
		return nil
	}
	return []bar{
		{"CPU for each token", "cpu_of_nginx", scheduler.CPUPerToken.Median / nginx.CPUPerToken.Median},
		{"TTFT idle, p50", "idle_p50_of_nginx", scheduler.Idle.P50 / nginx.Idle.P50},
		{"TTFT idle, p99", "idle_p99_of_nginx", scheduler.Idle.P99 / nginx.Idle.P99},
		{"TTFT loaded, p50", "busy_p50_of_nginx", scheduler.BusyP50.Median / nginx.BusyP50.Median},
		{"TTFT loaded, p99", "busy_p99_of_nginx", scheduler.BusyP99.Median / nginx.BusyP99.Median},
	}
}

// Figure returns a metric of a row. A row is a rate, for example 20000; its metrics are cpu_us of
// the scheduler and the shares of the bars. The row burst has the metric failed.
func (r *Report) Figure(row, metric string) (float64, bool) {
	if row == "burst" && metric == "failed" {
		return float64(r.Burst.Failed), true
	}
	for i := range r.Rates {
		s := &r.Rates[i]
		if fmt.Sprintf("%.0f", s.Rate) != row {
			continue
		}
		if scheduler := s.target(schedulerName); metric == "cpu_us" && scheduler != nil {
			return scheduler.CPUPerToken.Median, true
		}
		for _, b := range s.bars() {
			if b.metric == metric {
				return b.share, true
			}
		}
	}
	return 0, false
}
