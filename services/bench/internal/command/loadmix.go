package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	bench "github.com/millrace/millrace/services/bench/internal/engine"
	"github.com/millrace/millrace/services/bench/internal/load"
)

// engineShare compares a load with the engine alone for the same mix.
type engineShare struct {
	File string    `json:"file"`
	Mix  bench.Mix `json:"mix"`
	// Generated is the tokens a second of the engine; Share is the rate of the load over it.
	Generated float64 `json:"engine_tokens_per_second"`
	Share     float64 `json:"share"`
}

// applyMix sets the flags that --mix replaces.
func (f *loadFlags) applyMix() error {
	if f.mix == "" {
		return nil
	}
	m, err := bench.ParseMix(f.mix)
	if err != nil {
		return fmt.Errorf("--mix: %w", err)
	}
	f.concurrency, f.promptTokens, f.maxTokens = m.Sequences, m.Prompt, m.Tokens
	return nil
}

// readEngine returns the mix of this load from a report of the command engine; nil without
// --engine.
func (f *loadFlags) readEngine() (*engineShare, error) {
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
	var report bench.Report
	if err := json.Unmarshal(raw, &report); err != nil {
		return nil, fmt.Errorf("--engine %s: want what `millrace-bench engine --mix ... --save` writes: %w", f.engine, err)
	}
	want := bench.Mix{Sequences: f.concurrency, Prompt: f.promptTokens, Tokens: f.maxTokens}
	var has []string
	for _, m := range report.Mixes {
		if m.Mix == want {
			return &engineShare{File: f.engine, Mix: want, Generated: m.Generated.Median}, nil
		}
		has = append(has, m.Mix.String())
	}
	return nil, fmt.Errorf("--engine %s: it has no mix %s, but [%s]", f.engine, want, strings.Join(has, " "))
}

// Print writes one line; nothing if e is nil.
func (e *engineShare) Print(w io.Writer) {
	if e != nil {
		fmt.Fprintf(w, "engine   %.1f %% of the %.0f tokens/s that the engine alone reached for %s in %s\n", 100*e.Share, e.Generated, e.Mix,
			e.File)
	}
}

// joiners are calls with a long prompt and one generated token that start periodically during a
// load.
type joiners struct {
	prompt int
	every  time.Duration
}

// parseJoin parses PROMPTxPERIOD; the empty string gives the zero value.
func parseJoin(s string) (joiners, error) {
	if s == "" {
		return joiners{}, nil
	}
	wrong := fmt.Errorf("--join %q: want PROMPTxPERIOD, such as 4096x2s, of 1 to 1048576 tokens and 1ms to 1h", s)
	prompt, period, ok := strings.Cut(s, "x")
	if !ok {
		return joiners{}, wrong
	}
	n, err := strconv.Atoi(prompt)
	if err != nil || n < 1 || n > 1<<20 {
		return joiners{}, wrong
	}
	every, err := time.ParseDuration(period)
	if err != nil || every < time.Millisecond || every > time.Hour {
		return joiners{}, wrong
	}
	return joiners{prompt: n, every: every}, nil
}

// joinSeed makes the prompts of joiners differ from those of the load.
const joinSeed = 1 << 40

// run starts calls until ctx ends, which cancels the running ones.
func (j joiners) run(ctx context.Context, conns []grpc.ClientConnInterface, maker load.Maker, timeout time.Duration, to *load.Recorder) {
	if j.prompt == 0 {
		return
	}
	maker.Seed += joinSeed
	maker.Text = ""
	g := load.Generator{Conns: conns, Maker: maker, Timeout: timeout, To: to}
	g.Open(ctx, load.Periodic(j.every, load.Size{Prompt: j.prompt, Output: 1}))
}
