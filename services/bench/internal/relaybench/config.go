package relaybench

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

// Config of Cost.
type Config struct {
	Programs
	Streams     int           // at once while processor time is taken
	Rates       []float64     // tokens a second wanted over all streams, one stage for each
	Rounds      int           // of each stage; each way has its turn in every round
	Duration    time.Duration // of a turn
	Pairs       int           // first tokens taken on each way while nothing else runs
	Burst       int           // streams at once at the end
	BurstTokens int           // of each
	Prompt      int           // tokens
}

// maxStreams is what a worker takes.
const maxStreams = 1024

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	wrong := []error{
		c.wrong(),
		within("--streams", c.Streams, maxStreams-probes),
		within("--rounds", c.Rounds, 1<<10),
		within("--pairs", c.Pairs, 1<<20),
		within("--burst", c.Burst, maxStreams),
		within("--burst-tokens", c.BurstTokens, 1<<20),
		within("--prompt", c.Prompt, 1<<10),
	}
	if len(c.Rates) == 0 {
		wrong = append(wrong, errors.New("--rates names none: want tokens a second, divided by commas"))
	}
	for _, rate := range c.Rates {
		if !(rate >= float64(c.Streams) && rate <= 1e7) {
			wrong = append(wrong, fmt.Errorf("--rates %v: want at least 1 token a second for each stream, and at most 1e7", rate))
		}
	}
	if c.Duration < 100*time.Millisecond || c.Duration > time.Hour {
		wrong = append(wrong, fmt.Errorf("--duration %v: want 100ms to 1h", c.Duration))
	}
	return errors.Join(wrong...)
}

// probes is how many calls beside the streams take the time of first tokens.
const probes = 4

// interval is the time of one token of a stream.
func (c *Config) interval(rate float64) time.Duration {
	return time.Duration(float64(c.Streams) / rate * float64(time.Second))
}

// size of a stream that lasts so long at a rate.
func (c *Config) size(rate float64, lasts time.Duration) load.Size {
	return load.Size{Prompt: c.Prompt, Output: max(int(rate*lasts.Seconds()/float64(c.Streams)), 1)}
}

// device is the sim engine's options: every step takes as long, whatever is in it.
func device(step time.Duration) string {
	return fmt.Sprintf("sim:step=%v,prefill=0s,decode=0s", step)
}

// rig is what the stages of a rate need: one worker, large enough for all of them.
func (c *Config) rig(rate float64, step time.Duration) rig {
	const spare = 64 // tokens: the rest of a last block, and a block more
	output := c.size(rate, c.Duration).Output
	return rig{
		Programs: c.Programs, workers: 1, device: device(step), nginx: c.Nginx != "",
		kvTokens:  uint64(max((c.Streams+probes)*(c.Prompt+output+spare), c.Burst*(c.Prompt+c.BurstTokens+spare))),
		context:   uint32(c.Prompt + max(output, c.BurstTokens) + 1),
		sequences: uint32(max(c.Burst, c.Streams+probes)),
	}
}
