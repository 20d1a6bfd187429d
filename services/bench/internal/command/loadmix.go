package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/millrace/millrace/services/bench/internal/enginebench"
	"github.com/millrace/millrace/services/bench/internal/gauge"
)

// ofEngine is what the engine alone reached for the mix of a load.
type ofEngine struct {
	File string    `json:"file"`
	Mix  gauge.Mix `json:"mix"`
	// Generated is tokens a second of the engine; Share is what was served of that.
	Generated float64 `json:"engine_tokens_per_second"`
	Share     float64 `json:"share"`
}

// takeMix sets what --mix stands for.
func (f *loadFlags) takeMix() error {
	if f.mix == "" {
		return nil
	}
	m, err := gauge.ParseMix(f.mix)
	if err != nil {
		return fmt.Errorf("--mix: %w", err)
	}
	f.concurrency, f.promptTokens, f.maxTokens = m.Sequences, m.Prompt, m.Tokens
	return nil
}

// readEngine finds the mix of this load in a report of the command engine; nil without --engine.
func (f *loadFlags) readEngine() (*ofEngine, error) {
	if f.engine == "" {
		return nil, nil
	}
	if f.rate > 0 || f.trace != "" || f.prompt != "" {
		return nil, fmt.Errorf("--engine: a mix is a closed loop of random ids: not with --rate, --trace or --prompt")
	}
	raw, err := os.ReadFile(f.engine)
	if err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	var report enginebench.Report
	if err := json.Unmarshal(raw, &report); err != nil {
		return nil, fmt.Errorf("--engine %s: want what `millrace-bench engine --mix ... --save` writes: %w", f.engine, err)
	}
	want := gauge.Mix{Sequences: f.concurrency, Prompt: f.promptTokens, Tokens: f.maxTokens}
	var has []string
	for _, m := range report.Mixes {
		if m.Mix == want {
			return &ofEngine{File: f.engine, Mix: want, Generated: m.Generated.Median}, nil
		}
		has = append(has, m.Mix.String())
	}
	return nil, fmt.Errorf("--engine %s: it has no mix %s, but [%s]", f.engine, want, strings.Join(has, " "))
}

// Print writes one line, or nothing where nothing is compared.
func (e *ofEngine) Print(w io.Writer) {
	if e != nil {
		fmt.Fprintf(w, "engine   %.1f %% of the %.0f tokens/s that the engine alone reached for %s in %s\n", 100*e.Share, e.Generated, e.Mix,
			e.File)
	}
}
