package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// Config configures a run.
type Config struct {
	Scheduler, Worker string        // paths of the programs
	Nginx             string        // path, or a name that is looked up; empty: without nginx
	Connections       int           // of this client, to each program
	Seed              uint64        // of the prompts
	Streams           int           // at once while processor time is measured
	Rates             []float64     // tokens a second over all streams, one stage for each
	Rounds            int           // of each stage; every target has a turn in every round
	Duration          time.Duration // of a turn
	Pairs             int           // TTFT samples of each target while nothing else runs
	Burst             int           // streams at once at the end
	BurstTokens       int           // of each
	Prompt            int           // tokens
}

// maxStreams is the largest batch of a worker.
const maxStreams = 1024

// probes is how many callers measure TTFT while the streams run.
const probes = 4

// Validate returns every error of the configuration.
func (c *Config) Validate() error {
	errs := []error{
		checkCount("--connections", c.Connections, 1<<10),
		checkCount("--streams", c.Streams, maxStreams-probes),
		checkCount("--rounds", c.Rounds, 1<<10),
		checkCount("--pairs", c.Pairs, 1<<20),
		checkCount("--burst", c.Burst, maxStreams),
		checkCount("--burst-tokens", c.BurstTokens, 1<<20),
		checkCount("--prompt", c.Prompt, 1<<10),
	}
	if len(c.Rates) == 0 {
		errs = append(errs, errors.New("--rates is empty: want tokens a second, divided by commas"))
	}
	for _, rate := range c.Rates {
		if !(rate >= float64(c.Streams) && rate <= 1e7) {
			errs = append(errs, fmt.Errorf("--rates %v: want at least 1 token a second for each stream, and at most 1e7", rate))
		}
	}
	if c.Duration < 100*time.Millisecond || c.Duration > time.Hour {
		errs = append(errs, fmt.Errorf("--duration %v: want 100ms to 1h", c.Duration))
	}
	return errors.Join(errs...)
}

// checkCount returns an error unless value is in [1, high].
func checkCount(flag string, value, high int) error {
	if value < 1 || value > high {
		return fmt.Errorf("%s %d: want 1 to %d", flag, value, high)
	}
	return nil
}

// interval returns the time between two tokens of a stream.
func (c *Config) interval(rate float64) time.Duration {
	return time.Duration(float64(c.Streams) / rate * float64(time.Second))
}

// size returns the size of a stream that lasts for d at a rate.
func (c *Config) size(rate float64, d time.Duration) load.Size {
	return load.Size{Prompt: c.Prompt, Output: max(int(rate*d.Seconds()/float64(c.Streams)), 1)}
}

// device returns the options of the sim engine: every step takes equally long, whatever its batch.
func device(step time.Duration) string {
	return fmt.Sprintf("sim:step=%v,prefill=0s,decode=0s", step)
}

// fleet returns one worker that is large enough for the stage of a rate and for the burst.
func (c *Config) fleet(rate float64, step time.Duration) proc.FleetConfig {
	const spare = 64 // tokens: the rest of the last KV block, and one block more
	output := c.size(rate, c.Duration).Output
	return proc.FleetConfig{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: 1, Device: device(step),
		KVTokens:  uint64(max((c.Streams+probes)*(c.Prompt+output+spare), c.Burst*(c.Prompt+c.BurstTokens+spare))),
		Context:   uint32(c.Prompt + max(output, c.BurstTokens) + 1),
		Sequences: uint32(max(c.Burst, c.Streams+probes)),
	}
}
