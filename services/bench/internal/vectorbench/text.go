package vectorbench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s, %s after; %.1f %% of its time stolen meanwhile\n", r.Machine, r.LoadAfter, 100*r.Stolen)
	fmt.Fprintf(w, "device   %s, path %s, %d threads\n", r.Device.Name, r.Device.Path, r.Device.Threads)
	if r.Roofs.Ops == 0 {
		fmt.Fprintf(w, "roof     not measured: a %s device has none\n", r.Device.Kind)
	} else {
		fmt.Fprintf(w, "roof     %.1f GFLOP/s, the best seen, shares are of those beside each repeat; read %.1f GB/s\n", r.Roofs.Ops/1e9, r.Roofs.Read/1e9)
	}
	fmt.Fprintf(w, "data     seed %d, trainings but large at %g of the document's rows\n", r.Seed, r.Scale)
	fmt.Fprintf(w, "\nmedian of at most %d within %g s (min..max); a share of reading where the rows are more than a cache holds\n\n", r.Repeat,
		r.Budget)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "row\trows\ts\t(min..max)\tvectors/s\tTFLOP/s\tof roof\t(min..max)\tby processor\tof read\trecomputed\t\t\n")
	for i := range r.Lines {
		l := &r.Lines[i]
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", l.Row, l.Rows, short(l.Seconds.Median), spread(l.Seconds, short),
			short(l.VectorsPerSecond.Median), tera(l.OpsPerSecond), percent(l.Share.Median), spread(l.Share, percent),
			percent(l.ProcessorShare.Median), percent(l.ReadShare), l.recomputed(), l.more())
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	if r.Target != "" {
		r.printServed(w)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "\nleft out %s: %s\n", s.Row, s.Reason)
	}
	r.Floors.Print(w)
}

func (r *Report) printServed(w io.Writer) {
	fmt.Fprintf(w, "\nby calls to %s, the same bytes\n\n", r.Target)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "row\ts\t(min..max)\tvectors/s\tof direct\t\n")
	for i := range r.Lines {
		l := &r.Lines[i]
		if s := l.Served; s != nil {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t\n", l.Row, short(s.Seconds.Median), spread(s.Seconds, short), short(s.VectorsPerSecond.Median),
				percent(s.OfDirect))
		}
	}
	_ = table.Flush()
}

// recomputed is the share of ids that float64 decided.
func (l *Line) recomputed() string {
	if l.OpsPerSecond == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f %%", 100*l.Recomputed)
}

// more is what this part alone tells.
func (l *Line) more() string {
	switch l.Part {
	case PartIteration:
		return fmt.Sprintf("%.2f of assign (%.2f..%.2f)", l.OfAssign.Median, l.OfAssign.Min, l.OfAssign.Max)
	case PartWrite:
		return fmt.Sprintf("%.2f GB/s", l.BytesPerSecond/1e9)
	case PartStream:
		return fmt.Sprintf("%.2f GB/s, %.1f %% of bus", l.BytesPerSecond/1e9, 100*l.OfBus)
	case PartTrain:
		return fmt.Sprintf("%d rounds, energy %.6g, %s s when the rows are there", l.Rounds, l.Energy, short(l.Resident.Median))
	default:
		return ""
	}
}

func spread(s stats.Spread, one func(float64) string) string {
	if s.Max == 0 {
		return "-"
	}
	return fmt.Sprintf("(%s..%s)", one(s.Min), one(s.Max))
}

func tera(ops float64) string {
	if ops == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4f", ops/1e12)
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// short is a number with four digits or so.
func short(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3f G", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3f M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.2f k", v/1e3)
	case v >= 1:
		return fmt.Sprintf("%.3f", v)
	default:
		return fmt.Sprintf("%.5f", v)
	}
}
