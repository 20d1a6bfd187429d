package relaybench

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string        // paths of the programs
	Model             string        // model file whose vocabulary is used; empty: a small synthetic one
	Streams           int           // at once while processor time is taken
	Rate              float64       // tokens a second wanted over all streams
	Duration          time.Duration // of that
	Pairs             int           // first tokens taken on each way
	Burst             int           // streams at once at the end
	BurstTokens       int           // of each
	Connections       int           // of this client, to each program
	Prompt            int           // tokens
	Seed              uint64
}

// maxStreams is what a worker takes.
const maxStreams = 1024

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	check := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	check("--streams", c.Streams, 1, maxStreams-probes)
	check("--pairs", c.Pairs, 1, 1<<20)
	check("--burst", c.Burst, 1, maxStreams)
	check("--burst-tokens", c.BurstTokens, 1, 1<<20)
	check("--connections", c.Connections, 1, 1<<10)
	check("--prompt", c.Prompt, 1, 1<<10)
	if !(c.Rate >= float64(c.Streams) && c.Rate <= 1e7) {
		wrong = append(wrong, fmt.Errorf("--rate %v: want at least 1 token a second for each stream, and at most 1e7", c.Rate))
	}
	if c.Duration < 100*time.Millisecond || c.Duration > time.Hour {
		wrong = append(wrong, fmt.Errorf("--duration %v: want 100ms to 1h", c.Duration))
	}
	return errors.Join(wrong...)
}

// probes is how many calls beside the streams take the time of first tokens.
const probes = 1

// interval is the time of one token of a stream.
func (c *Config) interval() time.Duration {
	return time.Duration(float64(c.Streams) / c.Rate * float64(time.Second))
}

// size of a stream while processor time is taken.
func (c *Config) size() load.Size {
	return load.Size{Prompt: c.Prompt, Output: max(int(c.Rate*c.Duration.Seconds()/float64(c.Streams)), 1)}
}

// device is the sim engine's options: every step takes as long, whatever is in it.
func device(step time.Duration) string {
	return fmt.Sprintf("sim:step=%v,prefill=0s,decode=0s", step)
}

// kvTokens hold every stream of the largest stage, with room to spare.
func (c *Config) kvTokens() uint64 {
	const spare = 64 // tokens: the rest of a last block, and a block more
	return uint64(max((c.Streams+probes)*(c.Prompt+c.size().Output+spare), c.Burst*(c.Prompt+c.BurstTokens+spare)))
}

// context is the longest stream.
func (c *Config) context() uint32 { return uint32(c.Prompt + max(c.size().Output, c.BurstTokens) + 1) }
