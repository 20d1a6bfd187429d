package restart

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what a run found.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Workers int           `json:"workers"`
	Prefix  int           `json:"prefix_tokens"`
	Every   float64       `json:"every_ms"` // between calls
	Busy    float64       `json:"busy"`     // share of all processors' time, whoever had it
	Rounds  []Round       `json:"rounds"`
	// AllRight counts a round whose last call was not right as if it had been right when it ended.
	AllRight   stats.Spread   `json:"all_right_ms"`
	FirstRight stats.Spread   `json:"first_right_ms"`
	RightLater stats.Spread   `json:"right_later"`
	Floors     *floor.Verdict `json:"floors,omitempty"` // set by the caller
}

// sum fills the spreads.
func (r *Report) sum() {
	end := func(v float64, x *Round) float64 {
		if v < 0 {
			return float64(x.Calls) * r.Every
		}
		return v
	}
	var all, first, later []float64
	for i := range r.Rounds {
		x := &r.Rounds[i]
		all, first, later = append(all, end(x.AllRight, x)), append(first, end(x.FirstRight, x)), append(later, x.RightLater)
	}
	r.AllRight, r.FirstRight, r.RightLater = stats.SpreadOf(all), stats.SpreadOf(first), stats.SpreadOf(later)
}

// Figure is a metric of the row restart: all_right_ms and first_right_ms, of the worst round, and right_later, of the worst too.
func (r *Report) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{
		"restart all_right_ms": r.AllRight.Max, "restart first_right_ms": r.FirstRight.Max, "restart right_later": r.RightLater.Min,
	}[row+" "+metric]
	return v, ok
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\nfleet    %d workers, prefixes of %d tokens that one of them has each, one call every %g ms; processors %.0f %% busy\n\n",
		r.Machine, r.Workers, r.Prefix, r.Every, 100*r.Busy)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "round\tlistens after ms\tfirst right ms\tall right from ms\tcalls\twrong\trefused\tright before %v\tand behind\t\n", bar)
	for i, x := range r.Rounds {
		fmt.Fprintf(table, "%d\t%.0f\t%s\t%s\t%d\t%d\t%d\t%.1f %%\t%.1f %%\t\n", i+1, x.Listened, moment(x.FirstRight), moment(x.AllRight), x.Calls,
			x.Wrong, x.Refused, 100*x.RightSoon, 100*x.RightLater)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	fmt.Fprintf(w, "\nall calls right from %.0f ms (%.0f..%.0f) after it listened; bar %.0f ms\n", r.AllRight.Median, r.AllRight.Min, r.AllRight.Max, ms(bar))
	r.Floors.Print(w)
}

func moment(v float64) string {
	if v < 0 {
		return "never"
	}
	return fmt.Sprintf("%.0f", v)
}
