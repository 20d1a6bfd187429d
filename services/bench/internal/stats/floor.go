package stats

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrMissed is returned if a figure is below its floor or was not measured.
var ErrMissed = errors.New("floors missed")

// Floor is one bound on one figure.
type Floor struct {
	Row, Metric string
	Ceiling     bool // the figure may not be above Value, rather than below
	Value       float64
}

// String returns the floor as its file has it, without the command.
func (f Floor) String() string {
	sign := ">="
	if f.Ceiling {
		sign = "<="
	}
	return fmt.Sprintf("%s %s %s %g", f.Row, f.Metric, sign, f.Value)
}

func (f Floor) holds(figure float64) bool {
	if f.Ceiling {
		return figure <= f.Value
	}
	return figure >= f.Value // false for NaN
}

// Floors are the floors of one command.
type Floors struct {
	File string
	List []Floor
}

// ReadFloors reads the floors of a command from a file. It returns an error if the file has none,
// because a caller that passes floors wants a run that can fail.
func ReadFloors(path, command string) (Floors, error) {
	f, err := os.Open(path)
	if err != nil {
		return Floors{}, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	floors, err := parse(f, command)
	if err != nil {
		return Floors{}, fmt.Errorf("%s: %w", path, err)
	}
	return Floors{File: path, List: floors}, nil
}

const wanted = "want COMMAND ROW METRIC >= NUMBER, or <="

// parse checks every line and returns the floors of the command.
func parse(r io.Reader, command string) ([]Floor, error) {
	var floors []Floor
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 5 || fields[3] != ">=" && fields[3] != "<=" {
			return nil, fmt.Errorf("line %d: %q: %s", number, strings.TrimSpace(text), wanted)
		}
		value, err := strconv.ParseFloat(fields[4], 64)
		if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
			return nil, fmt.Errorf("line %d: %q is not a number: %s", number, fields[4], wanted)
		}
		key := strings.Join(fields[:4], " ")
		if first, found := seen[key]; found {
			return nil, fmt.Errorf("line %d: %s is in line %d too", number, key, first)
		}
		seen[key] = number
		if fields[0] == command {
			floors = append(floors, Floor{Row: fields[1], Metric: fields[2], Ceiling: fields[3] == "<=", Value: value})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(floors) == 0 {
		return nil, fmt.Errorf("no floor of the command %s", command)
	}
	return floors, nil
}

// Under returns the floors of the rows that begin with one of the prefixes. It returns an error if
// no row does.
func (s Floors) Under(prefixes ...string) (Floors, error) {
	under := Floors{File: s.File}
	for _, f := range s.List {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(f.Row, prefix) }) {
			under.List = append(under.List, f)
		}
	}
	if len(under.List) == 0 {
		return Floors{}, fmt.Errorf("%s: no floor of rows below %s", s.File, strings.Join(prefixes, " or "))
	}
	return under, nil
}

// Verdict is the result of comparing a run with its floors.
type Verdict struct {
	File   string   `json:"file"`
	Held   int      `json:"held"`
	Missed []string `json:"missed,omitempty"`
}

// Figure returns the value of a metric in a row, and false if it was not measured.
type Figure func(row, metric string) (float64, bool)

// Judge compares every floor with its figure.
func (s Floors) Judge(figure Figure) *Verdict {
	v := &Verdict{File: s.File}
	for _, f := range s.List {
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

// Err returns ErrMissed with every missed floor; nil if none was missed, or if v is nil.
func (v *Verdict) Err() error {
	if v == nil || len(v.Missed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d in %s:\n  %s", ErrMissed, len(v.Missed), v.Held+len(v.Missed), v.File,
		strings.Join(v.Missed, "\n  "))
}

// Print writes one line; nothing if v is nil.
func (v *Verdict) Print(w io.Writer) {
	if v != nil {
		fmt.Fprintf(w, "\nfloors   %d of %d in %s hold\n", v.Held, v.Held+len(v.Missed), v.File)
	}
}
