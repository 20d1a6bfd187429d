package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Config configures a run. Tokens and times are those of the trace, before they are scaled.
type Config struct {
	Scheduler, Worker string // paths of the programs
	Rows              []string
	Workers           int
	Cache             int           // tokens of each worker
	Load              float64       // share of all workers' time that the prompts take without a cache
	Step              time.Duration // of a worker for one generated token, whatever the batch
	Sequences         int           // running at once on a worker
	Scale             Scale
}

// Validate returns every error of the configuration.
func (c *Config) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for _, name := range c.Rows {
		if !slices.ContainsFunc(rows, func(r row) bool { return r.name == name }) {
			refuse("--rows: no row %q: want some of %s", name, strings.Join(RowNames(), ","))
		}
	}
	if len(c.Rows) == 0 {
		refuse("--rows is empty: want some of %s", strings.Join(RowNames(), ","))
	}
	if c.Workers < 1 || c.Workers > 64 {
		refuse("--workers %d: want 1 to 64", c.Workers)
	}
	if s := c.Scale.Shrink; s < 1 || s > BlockTokens/kvBlock || s&(s-1) != 0 {
		refuse("--shrink %d: want a power of two up to %d, so that a block of %d tokens is some of a worker's, of %d", s,
			BlockTokens/kvBlock, BlockTokens, kvBlock)
	}
	if !(c.Scale.Speed >= 0.01 && c.Scale.Speed <= 1000) {
		refuse("--speed %v: want 0.01 to 1000", c.Scale.Speed)
	}
	if !(c.Load > 0 && c.Load <= 10) {
		refuse("--load %v: want above 0 and at most 10", c.Load)
	}
	if c.Step < 0 || c.Step > time.Minute {
		refuse("--step %v: want 0 to 1m", c.Step)
	}
	if c.Sequences < 1 || c.Sequences > 1024 {
		refuse("--sequences %d: want 1 to 1024", c.Sequences)
	}
	if c.Cache < 1 || c.Cache > 1<<28 {
		refuse("--cache %d: want 1 to %d tokens", c.Cache, 1<<28)
	}
	return errors.Join(wrong...)
}

// ErrTrace is returned for a trace that cannot be replayed.
var ErrTrace = errors.New("trace cannot be replayed")

// check returns an error for a trace without blocks, or with a request that does not fit a worker.
func (c *Config) check(requests []Request) error {
	if len(requests) < 2 || requests[len(requests)-1].Arrival <= 0 {
		return fmt.Errorf("%w: it takes no time: give it more requests", ErrTrace)
	}
	longest := 0
	for i, r := range requests {
		if want := (r.Prompt + BlockTokens - 1) / BlockTokens; len(r.Blocks) != want {
			return fmt.Errorf("%w: request %d of %d tokens names %d blocks, want %d: it takes hash_ids as Mooncake's traces have",
				ErrTrace, i+1, r.Prompt, len(r.Blocks), want)
		}
		longest = max(longest, c.Scale.tokens(r.Prompt)+c.Scale.tokens(r.Output))
	}
	if cache := c.cacheTokens(); longest+kvBlock > cache {
		return fmt.Errorf("%w: its longest request has %d tokens and a worker's cache %d, shrunk by %d: raise --cache", ErrTrace, longest,
			cache, c.Scale.Shrink)
	}
	return nil
}

// cacheTokens returns the size of a worker's cache in replayed tokens, rounded down to KV blocks.
func (c *Config) cacheTokens() int { return c.Cache / c.Scale.Shrink / kvBlock * kvBlock }

// prefill returns the time of one prompt token of the trace on a worker.
func (c *Config) prefill(requests []Request) time.Duration {
	tokens := 0
	for _, r := range requests {
		tokens += r.Prompt
	}
	span := requests[len(requests)-1].Arrival.Seconds()
	return time.Duration(math.Round(c.Load * float64(c.Workers) * span / float64(tokens) * 1e9))
}

// device returns the options of the sim engine. A replayed token stands for several tokens that
// are generated one after another, so a step stands for as many steps.
func (c *Config) device(requests []Request) string {
	several := func(d time.Duration) time.Duration { return c.Scale.time(d) * time.Duration(c.Scale.Shrink) }
	return fmt.Sprintf("sim:step=%v,prefill=%v,decode=0s", several(c.Step), several(c.prefill(requests)))
}

// Defaults of a worker on a GPU, and the smallest --step-target of a worker.
const (
	batchedTokens   = 4096
	stepTarget      = 50 * time.Millisecond
	leastStepTarget = time.Millisecond
)

// quiet keeps the end of a program's log free for warnings.
var quiet = []string{"--log-level", "warn"}

// workerFlags returns flags with which workers on the sim engine plan steps as workers on a GPU
// do.
func (c *Config) workerFlags() []string {
	return []string{
		"--max-batched-tokens", fmt.Sprint(max(batchedTokens/c.Scale.Shrink, c.Sequences)),
		"--step-target", max(c.Scale.time(stepTarget), leastStepTarget).String(),
	}
}
