package selfcheck

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ErrFailed means that a result of the device is outside its bound.
var ErrFailed = errors.New("self-test failed")

// Row is the result of one check.
type Row struct {
	Name  string
	Shape string
	Error float64 // largest difference, relative to the reference's root mean square
	Bound float64
	Time  time.Duration // on the device, best of several runs
	Note  string        // rate, or the problem
	OK    bool
}

// Run executes every check. It returns ErrFailed if one fails, or the reason if none could run.
func Run(device engine.Device) ([]Row, error) {
	operator, ok := device.(engine.Operator)
	if !ok {
		return nil, fmt.Errorf("this device computes nothing that could be checked: %w", engine.ErrUnsupported)
	}
	var rows []Row
	for _, c := range operations() {
		rows = append(rows, c.check(device, operator))
	}
	for _, t := range []engine.Type{engine.F16, engine.Q8_0, engine.Q4_K} {
		rows = append(rows, checkModel(device, t))
	}
	for _, r := range rows {
		if !r.OK {
			return rows, fmt.Errorf("%w: %s", ErrFailed, r.Name)
		}
	}
	return rows, nil
}

// Print writes the rows as one table.
func Print(w io.Writer, info engine.DeviceInfo, rows []Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "device %s %s, path %s, numerics %s\n\n", info.Kind, info.Name, info.Path, info.Numerics)
	fmt.Fprintln(table, "check\tshape\terror\tbound\ttime\t\tresult")
	for _, r := range rows {
		verdict := "ok"
		if !r.OK {
			verdict = "FAILED"
		}
		fmt.Fprintf(table, "%s\t%s\t%.2g\t%.2g\t%v\t%s\t%s\n", r.Name, r.Shape, r.Error, r.Bound, r.Time.Round(100*time.Nanosecond), r.Note, verdict)
	}
	return table.Flush()
}

// distance is the largest difference, relative to the root mean square of want. NaN is infinitely
// far.
func distance(got []float32, want []float64) float64 {
	var worst, square float64
	for i, w := range want {
		d := math.Abs(float64(got[i]) - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = max(worst, d)
		square += w * w
	}
	if rms := math.Sqrt(square / float64(len(want))); rms > 0 {
		return worst / rms
	}
	return worst
}
