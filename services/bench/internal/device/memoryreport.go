package device

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// MemoryReport is the result of RunMemory.
type MemoryReport struct {
	Machine proc.Machine `json:"machine"`
	Device  MemoryDevice `json:"device"`
	Bus     Bus          `json:"bus"`
	Driver  *Driver      `json:"driver,omitempty"` // nil: not measured
	// Roofs are the largest measured rate of each direction of copies, by the driver or by the
	// engine.
	Roofs  map[string]float64 `json:"roofs_bytes_per_second"`
	Copies []Copy             `json:"copies"`
	Pool   []Pool             `json:"pool"`
	Given  float64            `json:"given_share"` // of the free bytes, allocated by the check "all memory"
	Checks []Check            `json:"checks"`
	Notes  []string           `json:"notes,omitempty"`
	Floors *stats.Verdict     `json:"floors,omitempty"`
}

// MemoryDevice is the device that was measured.
type MemoryDevice struct {
	Kind       string  `json:"kind"`
	Name       string  `json:"name"`
	Build      string  `json:"build"`
	BytesFree  uint64  `json:"bytes_free"`
	Physical   *uint64 `json:"physical_bytes,omitempty"`
	Management string  `json:"management_problem,omitempty"`
}

// Check is a condition that must hold.
type Check struct {
	Name   string `json:"name"`
	Result string `json:"result"` // ok, skip or FAIL
	Text   string `json:"text"`
}

// skipped is the reason why a check does not apply to a device.
type skipped struct{ why string }

func (s skipped) Error() string { return s.why }

func skip(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

// add appends the result of a check.
func (r *MemoryReport) add(name, text string, err error) {
	c := Check{Name: name, Result: "ok", Text: text}
	var s skipped
	switch {
	case errors.As(err, &s) && err.Error() == s.why: // without a further error
		c.Result, c.Text = "skip", s.why
	case err != nil:
		c.Result, c.Text = "FAIL", err.Error()
	}
	r.Checks = append(r.Checks, c)
}

// failed returns ErrFailed with every failed check, or nil.
func (r *MemoryReport) failed() error {
	var all []string
	for _, c := range r.Checks {
		if c.Result == "FAIL" {
			all = append(all, c.Name+": "+c.Text)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrFailed, strings.Join(all, "\n  "))
}

// Figure returns a metric of a row: gbps, of_driver, of_roof and of_peak of a copy; ratio,
// abi_ratio, bare_us and on_us of the pool; share of all, the part of the free memory that could
// be allocated.
func (r *MemoryReport) Figure(row, metric string) (float64, bool) {
	figures := map[string]float64{}
	for i := range r.Copies {
		if c := &r.Copies[i]; c.Name == row {
			figures = map[string]float64{
				"gbps": c.Rate.Median / 1e9, "of_driver": c.OfDriver, "of_roof": c.OfRoof, "of_peak": c.OfPeak,
			}
		}
	}
	for i := range r.Pool {
		if p := &r.Pool[i]; p.Name == row {
			figures = map[string]float64{
				"ratio": p.Ratio(), "abi_ratio": p.Off.Median / p.On.Median, "bare_us": p.Bare, "on_us": p.On.Median,
			}
		}
	}
	if row == "all" {
		figures["share"] = r.Given
	}
	value := figures[metric]
	return value, value > 0
}

// Print writes the report as text.
func (r *MemoryReport) Print(w io.Writer) {
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

func (r *MemoryReport) printCopies(w io.Writer) {
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
	_ = table.Flush() // the writer is a terminal or a buffer
}

func (r *MemoryReport) printPool(w io.Writer) {
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
	_ = table.Flush() // the writer is a terminal or a buffer
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}
