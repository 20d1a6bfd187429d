package replay

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Bars of routing.
const (
	barSpeedup     = 2.0
	barHitOfOracle = 0.95
	barTwoOfOne    = 0.97
	barUnique      = 1.05 // two runs of one rule differ by so much
)

// Print writes the report as text, each bar beside its figure.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\n", r.Machine)
	fmt.Fprintf(w, "trace    %d requests in %.0f s, %d prompt tokens, of which one endless cache would have %.1f %%\n", r.Requests, r.Span,
		r.Prompt, 100*r.Reusable)
	fmt.Fprintf(w, "workers  %d, each with a cache of %d tokens and %.0f prompt tokens a second: load %.2f if nothing were cached\n",
		r.Workers, r.Cache, r.PrefillRate, r.Load)
	fmt.Fprintf(w, "scale    %d token(s) replayed as 1 and %g s as 1 s, so that workers are %s with %s;\n"+
		"         reports of caches, 250 ms apart, are %.1f s of the trace apart\n\n", r.Scale.Shrink, r.Scale.Speed, r.Device,
		strings.Join(r.Flags, " "), 0.25*r.Scale.Speed)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "row\tfirst token, mean ms\tp50\tp99\tmean, s of the trace\thit rate\tforetold\tfailed\tbusy\tcores of schedulers\tworkers\tthis program\tlate p99 ms\t\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		foretold := "-"
		if x.Foretold != nil {
			foretold = fmt.Sprintf("%.1f %%", 100**x.Foretold)
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.1f %%\t%s\t%d\t%.0f %%\t%.2f\t%.2f\t%.2f\t%.1f\t\n", x.Row, x.First.Mean, x.First.P50, x.First.P99,
			x.First.Mean*r.Scale.Speed/1e3, 100*x.HitRate, foretold, x.Failed, 100*x.Use.Busy, x.Use.Schedulers, x.Use.Workers, x.Use.Own, x.Late.P99)
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	fmt.Fprintln(w)
	table = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "compared\tfigure\tbar\n")
	for _, line := range []struct {
		what string
		is   *float64
		bar  string
	}{
		{"mean first token, round robin over scheduler", r.Compared.Speedup, fmt.Sprintf(">= %g", barSpeedup)},
		{"hit rate, scheduler over oracle", r.Compared.HitOfOracle, fmt.Sprintf(">= %g", barHitOfOracle)},
		{"hit rate, two schedulers over one", r.Compared.TwoOfOne, fmt.Sprintf(">= %g", barTwoOfOne)},
		{"without reuse: mean first token, scheduler over least-loaded", r.Compared.UniqueLeast, fmt.Sprintf("<= %g", barUnique)},
	} {
		if line.is != nil {
			fmt.Fprintf(table, "%s\t%.3f\t%s\n", line.what, *line.is, line.bar)
		}
	}
	_ = table.Flush()
	for i := range r.Rows {
		for _, e := range r.Rows[i].Errors {
			fmt.Fprintf(w, "\n%s: %s\n", r.Rows[i].Row, e)
		}
	}
	r.Floors.Print(w)
}
