package rig

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/machine"
)

// ErrBroken says that a promise was broken.
var ErrBroken = errors.New("a promise was broken")

// Result is what came of one section.
type Result struct {
	Section string  `json:"section"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Text    string  `json:"text"`
}

// String is one line.
func (r Result) String() string {
	verdict := "ok  "
	if !r.OK {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%s  %-10s %4.0f s  %s", verdict, r.Section, r.Seconds, r.Text)
}

// Head is what a run is of.
type Head struct {
	Machine    machine.Facts `json:"machine"`
	Schedulers int           `json:"schedulers"`
	Service    string        `json:"service"`
	Workers    int           `json:"workers"`
	Model      string        `json:"model"`
	Streams    int           `json:"streams"`
	Tokens     int           `json:"max_tokens"`
}

func (c *Config) head() Head {
	return Head{
		Machine: machine.Look(), Schedulers: len(c.Schedulers), Service: c.Service, Workers: c.Workers,
		Model: c.Model, Streams: c.Streams, Tokens: c.Tokens,
	}
}

// String is three lines.
func (h Head) String() string {
	return fmt.Sprintf("machine  %v\nfleet    %d schedulers, %d containers of the service %s\nload     %d streams at once, each of %d tokens of %s",
		h.Machine, h.Schedulers, h.Workers, h.Service, h.Streams, h.Tokens, h.Model)
}

// Report is what came of a run.
type Report struct {
	Head
	Sections []Result `json:"sections"`
}

// Print writes how many promises were kept; Run tells each section by itself.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%d of %d sections hold\n", len(r.Sections)-len(r.failed()), len(r.Sections))
}

// Err is ErrBroken with the names of the sections that failed; nil if none did.
func (r *Report) Err() error {
	if failed := r.failed(); len(failed) > 0 {
		return fmt.Errorf("%w: %s", ErrBroken, strings.Join(failed, ", "))
	}
	return nil
}

func (r *Report) failed() (names []string) {
	for _, s := range r.Sections {
		if !s.OK {
			names = append(names, s.Section)
		}
	}
	return names
}
