package floor

import (
	"fmt"
	"io"
	"strings"
)

// Verdict is what became of the floors of a run.
type Verdict struct {
	File   string   `json:"file"`
	Held   int      `json:"held"`
	Missed []string `json:"missed,omitempty"`
}

// Figure finds what was measured; false: nothing.
type Figure func(row, metric string) (float64, bool)

// Judge holds every floor against its figure.
func (s Set) Judge(figure Figure) *Verdict {
	v := &Verdict{File: s.File}
	for _, f := range s.Floors {
		value, measured := figure(f.Row, f.Metric)
		switch {
		case !measured:
			v.Missed = append(v.Missed, fmt.Sprintf("%s: not measured", f))
		case !f.holds(value):
			v.Missed = append(v.Missed, fmt.Sprintf("%s: measured %.4g", f, value))
		default:
			v.Held++
		}
	}
	return v
}

// Err is ErrMissed with every floor missed; nil for none, and for no verdict.
func (v *Verdict) Err() error {
	if v == nil || len(v.Missed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d in %s:\n  %s", ErrMissed, len(v.Missed), v.Held+len(v.Missed), v.File,
		strings.Join(v.Missed, "\n  "))
}

// Print writes one line, or nothing where there is no verdict.
func (v *Verdict) Print(w io.Writer) {
	if v != nil {
		fmt.Fprintf(w, "\nfloors   %d of %d in %s hold\n", v.Held, v.Held+len(v.Missed), v.File)
	}
}
