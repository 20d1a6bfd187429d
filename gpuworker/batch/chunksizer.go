package batch

import "time"

// MinChunk is the smallest number of prefill tokens planned for a step, and the first guess.
const MinChunk = 32

// chunkSizer chooses how many prefill tokens a step gets so that it takes about target. It follows
// the clock, which is safe because the size of a chunk never changes a bit of the output.
type chunkSizer struct {
	target time.Duration // wanted length of a step
	grain  int           // the device is fastest with multiples of it; 0 = with any number
	tokens int           // that fit the target, as far as measured; >= MinChunk
}

func newChunkSizer(target time.Duration, grain int) chunkSizer {
	return chunkSizer{target: target, grain: grain, tokens: MinChunk}
}

// chunk returns how many of the waiting prefill tokens the next step gets, at most limit. If some
// remain, the chunk is a multiple of grain: tokens beyond it would cost a whole further grain,
// because the device computes them in tiles.
func (c *chunkSizer) chunk(waiting, limit int) int {
	fits := min(c.tokens, limit)
	if waiting <= fits {
		return waiting
	}
	return c.roundDown(fits)
}

// roundDown rounds to whole grains. Less than one grain stays as it is.
func (c *chunkSizer) roundDown(tokens int) int {
	if c.grain <= 0 || tokens < c.grain {
		return tokens
	}
	return tokens - tokens%c.grain
}

// learn records a step with this many prefill tokens, of at most limit. A step with fewer than the
// sizer allowed is ignored, because other work took most of its time. The size at most doubles or
// halves from step to step, so that one odd measurement does little harm.
func (c *chunkSizer) learn(tokens int, took time.Duration, limit int) {
	if tokens < c.roundDown(min(c.tokens, limit)) {
		return
	}
	fits := int(float64(tokens) * float64(c.target) / float64(max(took, time.Microsecond)))
	c.tokens = max(min(max(fits, c.tokens/2), c.tokens*2, limit), MinChunk)
}

// rate is the measured speed of prefill, a moving average.
type rate struct{ perSecond float64 }

// learn records a step with this many prefill tokens. A new sample weighs a quarter.
func (r *rate) learn(tokens int, took time.Duration) {
	sample := float64(tokens) / max(took, time.Microsecond).Seconds()
	if r.perSecond == 0 {
		r.perSecond = sample
	}
	r.perSecond += (sample - r.perSecond) / 4
}

func (r *rate) known() bool { return r.perSecond > 0 }

// duration is how long this many tokens take. The rate must be known.
func (r *rate) duration(tokens int) time.Duration {
	return time.Duration(float64(tokens) / r.perSecond * float64(time.Second))
}
