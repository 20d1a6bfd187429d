package device

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// OpsReport is the result of RunOps.
type OpsReport struct {
	Machine proc.Machine   `json:"machine"`
	CPU     OpsDevice      `json:"cpu"`
	Device  *OpsDevice     `json:"device,omitempty"` // nil: only the CPU engine was measured
	Repeat  int            `json:"repeat"`
	Budget  float64        `json:"budget_seconds"`
	Lines   []OpsLine      `json:"lines"`
	Stolen  float64        `json:"stolen_share"`
	Floors  *stats.Verdict `json:"floors,omitempty"`
}

// OpsDevice is a device that was measured.
type OpsDevice struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Path  string   `json:"path"`
	Build string   `json:"build"`
	Roofs OpsRoofs `json:"roofs"` // the larger of before and after
}

func deviceOf(s *subject) OpsDevice {
	return OpsDevice{Kind: s.info.Kind, Name: s.info.Name, Path: s.info.Path, Build: s.info.Build, Roofs: s.roofs}
}

// OpsLine is one operation at one size.
type OpsLine struct {
	Name    string     `json:"name"`
	Shape   string     `json:"shape"`
	Ops     float64    `json:"ops,omitempty"`
	Bytes   float64    `json:"bytes"`
	Roof    Roof       `json:"roof"`
	Bound   float64    `json:"error_bound"`
	CPU     *OpsTiming `json:"cpu,omitempty"`    // nil: unsupported or wrong
	Device  *OpsTiming `json:"device,omitempty"` // nil: unsupported or wrong
	Speedup float64    `json:"speedup,omitempty"`
	Wrong   []string   `json:"wrong,omitempty"`
}

// OpsTiming is one operation on one device.
type OpsTiming struct {
	Runs    int          `json:"runs"`
	Seconds stats.Spread `json:"seconds"` // by the device's clock
	Error   float64      `json:"error"`   // the largest; see worst
	Share   float64      `json:"share"`   // of the roof; 0: unknown
}

// rate returns the rate a second in the unit of the line's roof.
func (l *OpsLine) rate(seconds float64) float64 {
	if l.Roof.bytes() {
		return l.Bytes / seconds
	}
	return l.Ops / seconds
}

// finish sets the figures that follow from times and roofs.
func (r *OpsReport) finish() {
	share := func(l *OpsLine, t *OpsTiming, d *OpsDevice) {
		if t == nil || d == nil || d.Roofs.of(l.Roof) == 0 {
			return
		}
		t.Share = l.rate(t.Seconds.Median) / d.Roofs.of(l.Roof)
	}
	for i := range r.Lines {
		l := &r.Lines[i]
		share(l, l.CPU, &r.CPU)
		share(l, l.Device, r.Device)
		if l.CPU != nil && l.Device != nil {
			l.Speedup = l.CPU.Seconds.Median / l.Device.Seconds.Median
		}
	}
}

// wrong returns ErrWrong with every wrong result, or nil.
func (r *OpsReport) wrong() error {
	var all []string
	for _, l := range r.Lines {
		all = append(all, l.Wrong...)
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrWrong, strings.Join(all, "\n  "))
}

// Figure returns a metric of a row (us, gbps, gflops, share or speedup) of the device, or of the
// CPU engine if it is the only device.
func (r *OpsReport) Figure(row, metric string) (float64, bool) {
	for i := range r.Lines {
		l := &r.Lines[i]
		t := l.Device
		if r.Device == nil {
			t = l.CPU
		}
		if l.Name != row || t == nil {
			continue
		}
		value, known := map[string]float64{
			"us": 1e6 * t.Seconds.Median, "gbps": l.Bytes / t.Seconds.Median / 1e9, "gflops": l.Ops / t.Seconds.Median / 1e9,
			"share": t.Share, "speedup": l.Speedup,
		}[metric]
		return value, known && value > 0 && !math.IsInf(value, 0)
	}
	return 0, false
}

// Print writes the report as text.
func (r *OpsReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s; %.1f %% of its time stolen\n", r.Machine, 100*r.Stolen)
	r.CPU.describe(w, "cpu")
	if r.Device != nil {
		r.Device.describe(w, "device")
	}
	fmt.Fprintf(w, "\nmedian of at most %d runs within %g s (min..max), the device's own time\n\n", r.Repeat, r.Budget)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "operation\tshape\troof\tcpu ms\trate\tof\t")
	if r.Device != nil {
		fmt.Fprintf(table, "%s ms\t(min..max)\trate\tof\tspeed-up\t", r.Device.Kind)
	}
	fmt.Fprint(table, "error\t\n")
	for i := range r.Lines {
		l := &r.Lines[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t", l.Name, l.Shape, l.Roof)
		l.cells(table, l.CPU, false)
		last := l.CPU
		if r.Device != nil {
			last = l.Device
			l.cells(table, l.Device, true)
			if l.Speedup > 0 {
				fmt.Fprintf(table, "%.1f\t", l.Speedup)
			} else {
				fmt.Fprint(table, "-\t")
			}
		}
		switch {
		case len(l.Wrong) > 0:
			fmt.Fprint(table, "WRONG\t\n")
		case last == nil:
			fmt.Fprint(table, "-\t\n")
		default:
			fmt.Fprintf(table, "%.0e\t\n", last.Error)
		}
	}
	_ = table.Flush() // the writer is a terminal or a buffer
	r.Floors.Print(w)
}

func (d *OpsDevice) describe(w io.Writer, label string) {
	fmt.Fprintf(w, "%-8s %s, path %s, roofs: read %.1f GB/s, copy %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", label,
		d.Name, d.Path, d.Roofs.Read/1e9, d.Roofs.Copy/1e9, d.Roofs.F32/1e9, d.Roofs.BF16/1e9)
}

// cells writes the cells of one device.
func (l *OpsLine) cells(w io.Writer, t *OpsTiming, spread bool) {
	if t == nil {
		fmt.Fprint(w, "-\t")
		if spread {
			fmt.Fprint(w, "-\t")
		}
		fmt.Fprint(w, "-\t-\t")
		return
	}
	fmt.Fprintf(w, "%s\t", short(1e3*t.Seconds.Median))
	if spread {
		fmt.Fprintf(w, "(%s..%s)\t", short(1e3*t.Seconds.Min), short(1e3*t.Seconds.Max))
	}
	unit := "GFLOP/s"
	if l.Roof.bytes() {
		unit = "GB/s"
	}
	fmt.Fprintf(w, "%s %s\t", short(l.rate(t.Seconds.Median)/1e9), unit)
	if t.Share == 0 {
		fmt.Fprint(w, "-\t")
		return
	}
	fmt.Fprintf(w, "%.1f %%\t", 100*t.Share)
}

// short returns a number with about four digits.
func short(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.4f", v)
	}
}
