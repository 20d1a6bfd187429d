package memorybench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\ndevice   %s, %.2f GB free\n", r.Machine, r.Device.Name, float64(r.Device.BytesFree)/1e9)
	fmt.Fprintf(w, "bus      %s", r.Bus.Text)
	if r.Bus.Peak > 0 {
		fmt.Fprintf(w, ": peak %.1f GB/s each way", r.Bus.Peak/1e9)
	}
	fmt.Fprint(w, "\nmemory   peak by clock and width ")
	if r.Driver != nil && r.Driver.Peak > 0 {
		fmt.Fprintf(w, "%.0f GB/s\n", r.Driver.Peak/1e9)
	} else {
		fmt.Fprint(w, "not known\n")
	}
	fmt.Fprintf(w, "roof     the largest rates of this run: h2d %.1f, d2h %.1f, d2d %.1f GB/s\n", r.Roofs[toDevice]/1e9,
		r.Roofs[fromDevice]/1e9, r.Roofs[onDevice]/1e9)
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note     %s\n", note)
	}
	r.printCopies(w)
	r.printPool(w)
	fmt.Fprintln(w)
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%-4s  %-15s %s\n", c.Result, c.Name, c.Text)
	}
	r.Floors.Print(w)
}

func (r *Report) printCopies(w io.Writer) {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "copy\tGB/s\t(min..max)\tdriver\tof driver\tof roof\tof peak\t\n")
	for _, c := range r.Copies {
		driver := "-"
		if c.Driver > 0 {
			driver = fmt.Sprintf("%.2f", c.Driver/1e9)
		}
		fmt.Fprintf(table, "%s\t%.2f\t(%.2f..%.2f)\t%s\t%s\t%s\t%s\t\n", c.Name, c.Rate.Median/1e9, c.Rate.Min/1e9, c.Rate.Max/1e9,
			driver, percent(c.OfDriver), percent(c.OfRoof), percent(c.OfPeak))
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
}

func (r *Report) printPool(w io.Writer) {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "take and give back, us\tpool\tdriver\tratio\tzeroed, pool\t(min..max)\t"+
		"zeroed, no pool\t(min..max)\tzeroing alone\t\n")
	for i := range r.Pool {
		p := &r.Pool[i]
		fmt.Fprintf(table, "%s\t", p.Name)
		if p.Ratio() > 0 {
			fmt.Fprintf(table, "%.2f\t%.1f\t%.1f\t", p.Bare, p.Driver, p.Ratio())
		} else {
			fmt.Fprint(table, "-\t-\t-\t")
		}
		fmt.Fprintf(table, "%.1f\t(%.1f..%.1f)\t%.1f\t(%.1f..%.1f)\t%.1f\t\n", p.On.Median, p.On.Min, p.On.Max, p.Off.Median,
			p.Off.Min, p.Off.Max, p.Zeroing.Median)
	}
	_ = table.Flush() // as above
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}
