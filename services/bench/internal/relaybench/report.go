package relaybench

import (
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what Cost found.
type Report struct {
	Machine      machine.Facts `json:"machine"`
	NoNginx      string        `json:"no_nginx,omitempty"` // why nothing is held against nginx
	Streams      int           `json:"streams"`
	Connections  int           `json:"connections"`
	Rates        []Stage       `json:"rates"`
	Burst        load.Report   `json:"burst"`
	SchedulerRSS uint64        `json:"scheduler_rss_bytes"` // after the burst
}

// Stage is one rate.
type Stage struct {
	Rate   float64 `json:"rate"` // wanted, tokens a second
	Device string  `json:"device"`
	Ways   []Way   `json:"ways"`
}

// Way is what was found on one way: worker, which is without anything between, nginx, or scheduler. Spreads are over rounds.
type Way struct {
	Name             string        `json:"name"`
	CPUPerToken      stats.Spread  `json:"cpu_us_per_token"` // of what stands between; of the worker itself where nothing does
	WorkerPerToken   stats.Spread  `json:"worker_cpu_us_per_token"`
	TokensPerSecond  stats.Spread  `json:"tokens_per_second"`
	MessagesPerToken stats.Spread  `json:"messages_per_token"`
	Idle             stats.Summary `json:"first_token_idle"`
	BusyP50          stats.Spread  `json:"first_token_busy_p50_ms"`
	BusyP99          stats.Spread  `json:"first_token_busy_p99_ms"`
}

// turn is one way in one round.
type turn struct {
	streams     load.Report
	first       stats.Histogram // of the calls beside the streams
	cpu, worker time.Duration
}

type turns []turn

// sum sums up the turns of a way.
func (all turns) sum(name string, idle stats.Summary) Way {
	spread := func(figure func(t *turn) float64) stats.Spread {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = figure(&all[i])
		}
		return stats.SpreadOf(values)
	}
	perToken := func(t *turn, used time.Duration) float64 {
		return float64(used.Microseconds()) / float64(max(t.streams.Tokens+t.first.Count(), 1))
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	return Way{
		Name: name, Idle: idle,
		CPUPerToken:      spread(func(t *turn) float64 { return perToken(t, t.cpu) }),
		WorkerPerToken:   spread(func(t *turn) float64 { return perToken(t, t.worker) }),
		TokensPerSecond:  spread(func(t *turn) float64 { return t.streams.TokensPerSecond }),
		MessagesPerToken: spread(func(t *turn) float64 { return ratio(t.streams.Messages, t.streams.Tokens) }),
		BusyP50:          spread(func(t *turn) float64 { return ms(t.first.Quantile(0.5)) }),
		BusyP99:          spread(func(t *turn) float64 { return ms(t.first.Quantile(0.99)) }),
	}
}

func ratio(a, b uint64) float64 { return float64(a) / float64(max(b, 1)) }

// way finds a way by name; nil: it was not measured.
func (s *Stage) way(name string) *Way {
	for i := range s.Ways {
		if s.Ways[i].Name == name {
			return &s.Ways[i]
		}
	}
	return nil
}
