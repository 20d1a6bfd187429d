package load

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%d requests in %.1f s: %d ok, %d failed", r.Requests, r.Seconds, r.OK, r.Failed)
	if r.Cut > 0 {
		fmt.Fprintf(w, ", %d cut off", r.Cut)
	}
	fmt.Fprintf(w, "; at most %d at once\n", r.PeakStreams)
	fmt.Fprintf(w, "%.2f requests/s, %.0f tokens/s, %.0f messages/s (%s tokens a message)\n\n", r.RequestsPerSecond,
		r.TokensPerSecond, r.MessagesPerSecond, quotient(r.Tokens, r.Messages))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "ms\tp50\tp90\tp99\tmax\tmean\tsamples\t\n")
	for _, row := range []struct {
		name string
		of   stats.Summary
	}{{"first token", r.TTFT}, {"inter-token", r.InterToken}, {"end to end", r.EndToEnd}, {"send lag", r.SendLag}} {
		fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%d\t\n", row.name, row.of.P50, row.of.P90, row.of.P99,
			row.of.Max, row.of.Mean, row.of.Count)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	for _, e := range r.Errors {
		fmt.Fprintf(w, "\n%d x %s %s: %s\n", e.Count, e.Code, e.Reason, e.Example)
	}
}

func quotient(a, b uint64) string {
	if b == 0 {
		return "0"
	}
	return fmt.Sprintf("%.3f", float64(a)/float64(b))
}

// barWidth is the length of the longest bar, in characters.
const barWidth = 50

// PrintBars draws a histogram.
func PrintBars(w io.Writer, title string, bars []stats.Bar) {
	var most uint64
	for _, b := range bars {
		most = max(most, b.Count)
	}
	if most == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, b := range bars {
		fmt.Fprintf(w, "%12s  %-*s %d\n", "<= "+rounded(b.UpTo), barWidth, strings.Repeat("#", int((b.Count*barWidth+most-1)/most)), b.Count)
	}
}

// rounded is a duration with three digits.
func rounded(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
