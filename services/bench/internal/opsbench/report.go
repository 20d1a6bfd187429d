package opsbench

import (
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what a run found.
type Report struct {
	Machine machine.Facts  `json:"machine"`
	CPU     Device         `json:"cpu"`
	Device  *Device        `json:"device,omitempty"` // nil: the CPU engine alone
	Repeat  int            `json:"repeat"`
	Budget  float64        `json:"budget_seconds"`
	Lines   []Line         `json:"lines"`
	Stolen  float64        `json:"stolen_share"`
	Floors  *floor.Verdict `json:"floors,omitempty"`
}

// Device is what was run on.
type Device struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Path  string `json:"path"`
	Build string `json:"build"`
	Roofs Roofs  `json:"roofs"` // the larger of before and after
}

func deviceOf(s *subject) Device {
	return Device{Kind: s.info.Kind, Name: s.info.Name, Path: s.info.Path, Build: s.info.Build, Roofs: s.roofs}
}

// Line is one operation at one size.
type Line struct {
	Name    string   `json:"name"`
	Shape   string   `json:"shape"`
	Ops     float64  `json:"ops,omitempty"`
	Bytes   float64  `json:"bytes"`
	Roof    Roof     `json:"roof"`
	Bound   float64  `json:"error_bound"`
	CPU     *Timing  `json:"cpu,omitempty"`    // nil: it does not have the operation, or was wrong
	Device  *Timing  `json:"device,omitempty"` // likewise
	Speedup float64  `json:"speedup,omitempty"`
	Wrong   []string `json:"wrong,omitempty"`
}

// Timing is one operation on one device.
type Timing struct {
	Runs    int          `json:"runs"`
	Seconds stats.Spread `json:"seconds"` // that the device took
	Error   float64      `json:"error"`   // the largest, see README
	Share   float64      `json:"share"`   // of the roof; 0: not known
}

// rate is units a second under the line's roof.
func (l *Line) rate(seconds float64) float64 {
	if l.Roof.bytes() {
		return l.Bytes / seconds
	}
	return l.Ops / seconds
}

// finish fills in what follows from times and roofs.
func (r *Report) finish() {
	share := func(l *Line, t *Timing, d *Device) {
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

// wrong is ErrWrong with every result that is not what it should be, or nil.
func (r *Report) wrong() error {
	var all []string
	for _, l := range r.Lines {
		all = append(all, l.Wrong...)
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrWrong, strings.Join(all, "\n  "))
}

// Figure is a metric of a row, of the device if there is one beside the CPU engine: us, gbps, gflops, share or speedup.
func (r *Report) Figure(row, metric string) (float64, bool) {
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
