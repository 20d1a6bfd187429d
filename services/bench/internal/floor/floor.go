package floor

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

// ErrMissed says that a figure is below its floor, or was not measured.
var ErrMissed = errors.New("floors missed")

// Floor is one bound on one figure.
type Floor struct {
	Row, Metric string
	Ceiling     bool // the figure may not be above Value, rather than below
	Value       float64
}

// String is the floor as its file has it, without the command.
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

// Set is the floors of one command.
type Set struct {
	File   string
	Floors []Floor
}

// Read reads the floors of a command from a file. A file that has none is refused: who asks for floors wants a run that
// can fail.
func Read(path, command string) (Set, error) {
	f, err := os.Open(path)
	if err != nil {
		return Set{}, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	floors, err := parse(f, command)
	if err != nil {
		return Set{}, fmt.Errorf("%s: %w", path, err)
	}
	return Set{File: path, Floors: floors}, nil
}

const wanted = "want COMMAND ROW METRIC >= NUMBER, or <="

// parse reads every line and keeps those of the command.
func parse(r io.Reader, command string) ([]Floor, error) {
	var own []Floor
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
			return nil, fmt.Errorf("line %d: %q is no number: %s", number, fields[4], wanted)
		}
		key := strings.Join(fields[:4], " ")
		if first, twice := seen[key]; twice {
			return nil, fmt.Errorf("line %d: %s stands in line %d too", number, key, first)
		}
		seen[key] = number
		if fields[0] == command {
			own = append(own, Floor{Row: fields[1], Metric: fields[2], Ceiling: fields[3] == "<=", Value: value})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(own) == 0 {
		return nil, fmt.Errorf("no floor of the command %s", command)
	}
	return own, nil
}

// Under is the floors of the rows that begin with one of some prefixes. None is refused, as by Read.
func (s Set) Under(prefixes ...string) (Set, error) {
	under := Set{File: s.File}
	for _, f := range s.Floors {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(f.Row, prefix) }) {
			under.Floors = append(under.Floors, f)
		}
	}
	if len(under.Floors) == 0 {
		return Set{}, fmt.Errorf("%s: no floor of rows below %s", s.File, strings.Join(prefixes, " or "))
	}
	return under, nil
}
