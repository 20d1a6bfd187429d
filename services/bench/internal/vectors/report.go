package vectors

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is the result of a run.
type Report struct {
	Machine   proc.Machine   `json:"machine"`
	Device    Device         `json:"device"`
	Roofs     Roofs          `json:"roofs"` // the largest; shares of operations use the roofs measured around each repeat
	Repeat    int            `json:"repeat"`
	Budget    float64        `json:"budget_seconds"`
	Scale     float64        `json:"scale"`
	Seed      uint64         `json:"seed"`
	Target    string         `json:"target,omitempty"`
	Lines     []Line         `json:"lines"`
	Skipped   []Skipped      `json:"skipped,omitempty"`
	Stolen    float64        `json:"stolen_share"`
	LoadAfter string         `json:"load_1m_after"`
	Floors    *stats.Verdict `json:"floors,omitempty"`
}

// Device is the device that was measured.
type Device struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Path    string `json:"path"`
	Build   string `json:"build"`
	Threads int    `json:"threads"` // of a CPU; multiprocessors of a GPU
}

// Line is one row.
type Line struct {
	Part      string `json:"part"`
	Row       string `json:"row"`
	Type      string `json:"type"` // of the rows' elements; codewords are f16
	Rows      int    `json:"rows"`
	Dimension int    `json:"dimension"`
	Codewords int    `json:"codewords"`
	Subspaces int    `json:"subspaces"`
	Rounds    int    `json:"rounds,omitempty"` // in one time

	Seconds          stats.Spread `json:"seconds"`
	Processor        stats.Spread `json:"processor_seconds"`  // of encoding, of all threads of the process
	VectorsPerSecond stats.Spread `json:"vectors_per_second"` // rows, once for each round
	OpsPerSecond     float64      `json:"ops_per_second"`     // of finding codewords alone
	BytesPerSecond   float64      `json:"bytes_per_second"`   // of rows
	Share            stats.Spread `json:"share"`              // of the roof of operations measured around each time
	ProcessorShare   stats.Spread `json:"processor_share"`    // the same with rate and roof by processor time; of encoding on a CPU
	ReadShare        float64      `json:"read_share"`         // of the roof of reading; 0 if a cache holds the rows
	Recomputed       float64      `json:"recomputed"`         // share of the ids decided by float64
	OfAssign         stats.Spread `json:"of_assign"`          // time of an iteration over that of an assignment alone
	OfBus            float64      `json:"of_bus,omitempty"`   // streamed rows over the best copy to the device
	Energy           float64      `json:"energy,omitempty"`   // of a whole training's last round
	Resident         stats.Spread `json:"resident_seconds"`   // of a whole training, from when its rows are on the device
	Served           *Served      `json:"served,omitempty"`
}

// Skipped is a row that was not measured.
type Skipped struct {
	Row    string `json:"row"`
	Reason string `json:"reason"`
}

// reads returns the bytes of rows that a line reads in one pass; 0 if the rows come from the
// host's memory.
func (l *Line) reads() float64 {
	if l.Part == PartStream {
		return 0
	}
	return l.BytesPerSecond * l.Seconds.Median / float64(max(l.Rounds, 1))
}

// finish sets the shares of the roof of reading. Rows that fit a cache of that size have none.
func (r *Report) finish(read, cached float64) {
	r.Roofs.Read = read
	for i := range r.Lines {
		if l := &r.Lines[i]; l.reads() > cached {
			l.ReadShare = share(l.BytesPerSecond, read)
		}
	}
}

// check returns ErrTooFast if a share is above 100 %.
func (r *Report) check() error {
	for i := range r.Lines {
		l := &r.Lines[i]
		for _, share := range []struct {
			of    string
			value float64
		}{{"operations", l.Share.Median}, {"operations by processor time", l.ProcessorShare.Median}, {"read", l.ReadShare}, {"bus", l.OfBus}} {
			if share.value > 1 {
				return fmt.Errorf("%w: %s reaches %.1f %% of the roof of %s; the machine was disturbed while the roof was measured "+
					"(raise --roof-time), or work was counted that was not done", ErrTooFast, l.Row, 100*share.value, share.of)
			}
		}
	}
	return nil
}

// Figure returns a metric of a row: seconds, resident_seconds, vectors and gbps (a second), share,
// processor_share, read_share, recomputed, of_assign, of_bus, and of calls served_seconds,
// served_vectors and of_direct.
func (r *Report) Figure(row, metric string) (float64, bool) {
	for i := range r.Lines {
		l := &r.Lines[i]
		if l.Row != row {
			continue
		}
		figures := map[string]float64{
			"seconds": l.Seconds.Median, "vectors": l.VectorsPerSecond.Median, "gbps": l.BytesPerSecond / 1e9, "share": l.Share.Median,
			"processor_share": l.ProcessorShare.Median,
			"read_share":      l.ReadShare, "of_assign": l.OfAssign.Median, "of_bus": l.OfBus, "resident_seconds": l.Resident.Median,
		}
		if s := l.Served; s != nil {
			figures["served_seconds"], figures["served_vectors"], figures["of_direct"] = s.Seconds.Median, s.VectorsPerSecond.Median, s.OfDirect
		}
		if metric == "recomputed" { // 0 is a valid figure
			return l.Recomputed, l.OpsPerSecond > 0
		}
		value := figures[metric]
		return value, value > 0
	}
	return 0, false
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s, %s after; %.1f %% of its time stolen\n", r.Machine, r.LoadAfter, 100*r.Stolen)
	fmt.Fprintf(w, "device   %s, path %s, %d threads\n", r.Device.Name, r.Device.Path, r.Device.Threads)
	if r.Roofs.Ops == 0 {
		fmt.Fprintf(w, "roof     not measured: a %s device has none\n", r.Device.Kind)
	} else {
		fmt.Fprintf(w, "roof     %.1f GFLOP/s, the best seen; shares use those measured with each repeat; read %.1f GB/s\n", r.Roofs.Ops/1e9, r.Roofs.Read/1e9)
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
	_ = table.Flush() // the writer is a terminal or a buffer
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

// recomputed returns the share of the ids decided by float64.
func (l *Line) recomputed() string {
	if l.OpsPerSecond == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f %%", 100*l.Recomputed)
}

// more returns the figures that only this part has.
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

// short returns a number with about four digits.
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
