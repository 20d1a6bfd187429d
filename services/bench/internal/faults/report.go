package faults

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is the result of RunProcesses.
type Report struct {
	Machine     proc.Machine `json:"machine"`
	Config      Summary      `json:"config"`
	Undisturbed *Stage       `json:"undisturbed"`
	Stages      []*Stage     `json:"stages"`
}

// Summary is the configuration as it is reported.
type Summary struct {
	Model        string   `json:"model"`
	Devices      []string `json:"devices"`
	Workers      int      `json:"workers"`
	MaxSequences int      `json:"max_sequences"`
	Streams      int      `json:"streams"`
	Requests     int      `json:"requests"`
	Prompt       int      `json:"prompt_tokens"`
	Answer       int      `json:"max_tokens"`
	Every        float64  `json:"every_seconds"`
	Restart      float64  `json:"restart_seconds"`
	Restore      float64  `json:"restore_seconds"`
	Seed         uint64   `json:"seed"`
}

func (c *ProcessConfig) summary() Summary {
	return Summary{
		Model: c.Model, Devices: c.Devices, Workers: c.Workers, MaxSequences: c.MaxSequences, Streams: c.Streams, Requests: c.Requests,
		Prompt: c.Prompt, Answer: c.Answer, Every: c.Every.Seconds(), Restart: c.Restart.Seconds(), Restore: c.Restore.Seconds(), Seed: c.Seed,
	}
}

// err returns the errors of all stages.
func (r *Report) err() error {
	var errs []error
	for _, s := range r.Stages {
		errs = append(errs, s.err())
	}
	return errors.Join(errs...)
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	c := r.Config
	fmt.Fprintf(w, "machine  %s\nfleet    %d schedulers, %d workers on %s, %d sequences each\nload     %d streams of %s, %d requests of up to %d+%d tokens, seed %d\n\n",
		r.Machine, schedulerCount, c.Workers, strings.Join(c.Devices, " and "), c.MaxSequences, c.Streams, c.Model, c.Requests, c.Prompt, c.Answer, c.Seed)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "stage\tseconds\tfaults\tstreams\ttokens\tfailed\tlost\trepeated\tdifferent\tresumed\tlogged\tbetween tokens p50\tp99\tmax\n")
	for _, s := range append([]*Stage{r.Undisturbed}, r.Stages...) {
		between := stats.Summary{}
		if s.InterToken != nil {
			between = *s.InterToken
		}
		fmt.Fprintf(table, "%s\t%.1f\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f ms\t%.1f ms\t%.1f ms\n", s.Name, s.Seconds, s.faults(), s.Streams, s.Tokens,
			s.Failed, s.Lost, s.Repeated, s.Different, s.Resumes, s.Told, between.P50, between.P99, between.Max)
	}
	_ = table.Flush() // to a terminal or a buffer
	fmt.Fprintf(w, "\n")
	fmt.Fprintf(table, "pauses\tfaults\tresumed\tmet\tp50\tlongest\tallowed\tundisturbed p50\tlongest\ttoo long\n")
	for _, s := range r.Stages {
		for _, g := range s.Gaps {
			allowed := "-"
			if g.Allowed > 0 {
				allowed = fmt.Sprintf("%v + undisturbed", time.Duration(g.Allowed*1e6))
			}
			fmt.Fprintf(table, "%s of %s\t%d\t%d\t%d\t%.0f ms\t%.0f ms\t%s\t%.0f ms\t%.0f ms\t%d\n", g.Kind, s.Name, g.Faults, g.Resumes, g.Pauses.Count,
				g.Pauses.P50, g.Pauses.Max, allowed, g.Undisturbed.P50, g.Undisturbed.Max, g.Over)
		}
	}
	_ = table.Flush() // as above
	for _, s := range append([]*Stage{r.Undisturbed}, r.Stages...) {
		for _, p := range s.Problems {
			fmt.Fprintf(w, "\n%s: %s", s.Name, p)
		}
	}
	for _, text := range r.unproven() {
		fmt.Fprintf(w, "\nnot proven: %s", text)
	}
	fmt.Fprintf(w, "\n")
}

// unproven lists the kinds of faults that were injected and met no stream between two tokens. A
// stage in which no kind met one fails, see Stage.err.
func (r *Report) unproven() []string {
	var out []string
	for _, s := range r.Stages {
		for _, g := range s.Gaps {
			if g.Faults > 0 && g.Resumes == 0 {
				out = append(out, fmt.Sprintf("%s of %s met no stream in %d faults: take more --streams, or a longer --duration", g.Kind, s.Name, g.Faults))
			}
		}
	}
	return out
}

// faults counts the faults by kind.
func (s *Stage) faults() string {
	var parts []string
	for _, kind := range Kinds {
		n := 0
		for _, f := range s.Faults {
			if f.Kind == kind {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
