package opsbench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s; %.1f %% of its time stolen meanwhile\n", r.Machine, 100*r.Stolen)
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
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
	r.Floors.Print(w)
}

func (d *Device) describe(w io.Writer, label string) {
	fmt.Fprintf(w, "%-8s %s, path %s, roofs: read %.1f GB/s, copy %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", label,
		d.Name, d.Path, d.Roofs.Read/1e9, d.Roofs.Copy/1e9, d.Roofs.F32/1e9, d.Roofs.BF16/1e9)
}

// print writes the cells of one device.
func (l *Line) cells(w io.Writer, t *Timing, spread bool) {
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

// short is a number with four digits or so.
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
