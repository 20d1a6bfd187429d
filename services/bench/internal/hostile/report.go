package hostile

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrBroken says that a promise was broken.
var ErrBroken = errors.New("a promise was broken")

// barRatio is what the 99th percentile beside strangers may be of that beside a harmless process.
const barRatio = 2

// Report is what a run found.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Config  Config        `json:"config"`
	Rounds  []Round       `json:"rounds"`
}

// Round is one comparison.
type Round struct {
	Alone    Measured `json:"alone"`
	Hostile  Measured `json:"beside_hostile"`
	Harmless Measured `json:"beside_harmless"`
	Tally    Tally    `json:"connections"`
}

// Measured is what the good client saw.
type Measured struct {
	Calls   stats.Summary `json:"calls"`
	Failed  uint64        `json:"failed"`
	Example string        `json:"failure,omitempty"`        // of one of them
	Others  float64       `json:"other_process_processors"` // used by the process beside
	Server  float64       `json:"scheduler_processors"`     // used by the scheduler
	Memory  uint64        `json:"scheduler_rss_bytes_at_end"`
}

// ratio is the 99th percentile beside strangers as a multiple of that beside a harmless process.
func (r *Round) ratio() float64 { return r.Hostile.Calls.P99 / r.Harmless.Calls.P99 }

// Ratio is the median of the rounds'.
func (r *Report) Ratio() float64 {
	all := make([]float64, len(r.Rounds))
	for i := range r.Rounds {
		all[i] = r.Rounds[i].ratio()
	}
	return stats.SpreadOf(all).Median
}

// Figure is a metric of the row hostile: ratio, memory_mb (at the end of the last round with strangers).
func (r *Report) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{
		"hostile ratio": r.Ratio(), "hostile memory_mb": float64(r.Rounds[len(r.Rounds)-1].Hostile.Memory) / 1e6,
	}[row+" "+metric]
	return v, ok
}

// Err is ErrBroken where a call of the good client failed.
func (r *Report) Err() error {
	var wrong []string
	for n, round := range r.Rounds {
		for what, m := range map[string]*Measured{"alone": &round.Alone, "beside strangers": &round.Hostile, "beside a harmless process": &round.Harmless} {
			if m.Failed > 0 {
				wrong = append(wrong, fmt.Sprintf("round %d, %s: %d calls failed: %s", n+1, what, m.Failed, m.Example))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%w:\n  %s", ErrBroken, strings.Join(wrong, "\n  "))
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "machine  %s\nhostile  %d connections from %s, %g a second, in each round\nclient   %g calls a second of %d tokens over TLS, for %v each\n",
		r.Machine, c.Connections, c.From, c.Rate, c.Calls, c.Tokens, c.Window())
	for n := range r.Rounds {
		round := &r.Rounds[n]
		fmt.Fprintf(w, "\nround %d\n", n+1)
		for _, line := range []struct {
			what string
			m    *Measured
		}{{"alone", &round.Alone}, {"beside hostile connections", &round.Hostile}, {"beside a harmless process", &round.Harmless}} {
			m := line.m
			fmt.Fprintf(w, "  %-27s  p50 %6.1f ms  p99 %6.1f ms  at most %6.1f ms; scheduler %.2f processors, %.0f MB; process beside %.2f\n",
				line.what, m.Calls.P50, m.Calls.P99, m.Calls.Max, m.Server, float64(m.Memory)/1e6, m.Others)
		}
		fmt.Fprintf(w, "  ratio of both p99: %.2f\n", round.ratio())
	}
	last := r.Rounds[len(r.Rounds)-1].Tally
	fmt.Fprintf(w, "\nof %d connections of the last round, %d not made:\n", last.Opened+last.Refused, last.Refused)
	for _, a := range attacks {
		fmt.Fprintf(w, "  %5d closed by the server, %5d held: one that %s\n", last.Closed[a.name], last.Held[a.name], a.name)
	}
	fmt.Fprintf(w, "\nratio    %.2f in the median of %d rounds; bar: at most %d\n", r.Ratio(), len(r.Rounds), barRatio)
}
