package rig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config of a run.
type Config struct {
	Project    string        // of Compose
	Schedulers []string      // published addresses of scheduler-0, scheduler-1 and so on; at least two
	Model      string        // loaded on every worker
	Service    string        // of Compose, whose containers are the workers
	Workers    int           // of that service
	Streams    int           // at once
	Tokens     int           // of each
	Only       []string      // sections; empty: all
	Truth      time.Duration // within which schedulers show what is so; of a silent worker with long steps, a little more
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if len(c.Schedulers) < 2 {
		refuse("--schedulers names %d: give two, of which one survives the other", len(c.Schedulers))
	}
	if c.Service == "" {
		refuse("--service is empty: want the one whose containers are the workers")
	}
	if c.Workers < 2 {
		refuse("--workers %d: want at least 2, of which one survives the other", c.Workers)
	}
	if c.Streams < max(1, len(c.Schedulers)) || c.Streams > 1000 {
		refuse("--streams %d: want %d to 1000, so that every scheduler has one", c.Streams, len(c.Schedulers))
	}
	if c.Tokens < 2 {
		refuse("--max-tokens %d: want at least 2, so that a stream has a middle", c.Tokens)
	}
	if c.Truth <= 0 {
		refuse("--truth %v: want a positive time", c.Truth)
	}
	for _, name := range c.Only {
		if !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
			refuse("no section %q: want %s", name, strings.Join(Sections(), ", "))
		}
	}
	return errors.Join(wrong...)
}

// Sections are the names of all sections, in the order in which they run.
func Sections() []string {
	names := make([]string, len(sections))
	for i, s := range sections {
		names[i] = s.name
	}
	return names
}
