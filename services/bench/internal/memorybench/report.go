package memorybench

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// Report is what a run found.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Device  Device        `json:"device"`
	Bus     Bus           `json:"bus"`
	Driver  *Driver       `json:"driver,omitempty"` // nil: there was no program to measure it
	// Roofs are the largest rate that this run saw of each way of copying, by the driver or by the engine.
	Roofs  map[string]float64 `json:"roofs_bytes_per_second"`
	Copies []Copy             `json:"copies"`
	Pool   []Pool             `json:"pool"`
	Given  float64            `json:"given_share"` // of the bytes told free, when everything was asked for
	Checks []Check            `json:"checks"`
	Notes  []string           `json:"notes,omitempty"`
	Floors *floor.Verdict     `json:"floors,omitempty"`
}

// Device is what was run on.
type Device struct {
	Kind       string  `json:"kind"`
	Name       string  `json:"name"`
	Build      string  `json:"build"`
	BytesFree  uint64  `json:"bytes_free"`
	Physical   *uint64 `json:"physical_bytes,omitempty"`
	Management string  `json:"management_problem,omitempty"`
}

// Check is something that must hold.
type Check struct {
	Name   string `json:"name"`
	Result string `json:"result"` // ok, skip or FAIL
	Text   string `json:"text"`
}

// skipped is why a check makes no sense on a device.
type skipped struct{ why string }

func (s skipped) Error() string { return s.why }

func skip(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

// add takes what became of a check.
func (r *Report) add(name, text string, err error) {
	c := Check{Name: name, Result: "ok", Text: text}
	var s skipped
	switch {
	case errors.As(err, &s) && err.Error() == s.why: // and nothing went wrong besides
		c.Result, c.Text = "skip", s.why
	case err != nil:
		c.Result, c.Text = "FAIL", err.Error()
	}
	r.Checks = append(r.Checks, c)
}

// failed is ErrFailed with every check that does not hold, or nil.
func (r *Report) failed() error {
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

// Figure is a metric of a row: gbps, of_driver, of_roof and of_peak of a copy; ratio, abi_ratio, bare_us and on_us of the
// pool; share of "all", the memory that was given when everything was asked for.
func (r *Report) Figure(row, metric string) (float64, bool) {
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
