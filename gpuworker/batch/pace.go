package batch

import "time"

// MinChunk is the least number of prefill tokens planned for a step, and the first guess.
const MinChunk = 32

// pace is how many prefill tokens a step may have to last about as long as wanted. It follows the clock: a chunk never changes
// a bit of the output.
type pace struct {
	target time.Duration // wanted length of a step
	grain  int           // the device is fastest with multiples of so many tokens; 0 = with any
	tokens int           // that fit it, as far as is known; >= MinChunk
}

func newPace(target time.Duration, grain int) pace {
	return pace{target: target, grain: grain, tokens: MinChunk}
}

// chunk is how many prefill tokens a step should have of those that wait, where most have room. A step that leaves some behind has a
// whole number of grains: what it has beyond them would take the device as long as a whole grain more.
func (p *pace) chunk(waiting, most int) int {
	fits := min(p.tokens, most)
	if waiting <= fits {
		return waiting
	}
	return p.whole(fits)
}

// whole is the grains in so many tokens, or the tokens where they are less than one.
func (p *pace) whole(tokens int) int {
	if p.grain <= 0 || tokens < p.grain {
		return tokens
	}
	return tokens - tokens%p.grain
}

// learn takes in a step that had so many prefill tokens where most had room, whatever was wanted. One with fewer than it might
// have had says nothing: most of its time went into something else. From one step to the next the pace at most doubles or
// halves, so that a single odd one spoils little.
func (p *pace) learn(tokens int, took time.Duration, most int) {
	if tokens < p.whole(min(p.tokens, most)) {
		return
	}
	fits := int(float64(tokens) * float64(p.target) / float64(max(took, time.Microsecond)))
	p.tokens = max(min(max(fits, p.tokens/2), p.tokens*2, most), MinChunk)
}

// rate is how fast the device computes prompts, as the last steps had it.
type rate struct{ perSecond float64 }

// learn takes in a step that had so many tokens of prompts. A fourth of what it says counts.
func (r *rate) learn(tokens int, took time.Duration) {
	now := float64(tokens) / max(took, time.Microsecond).Seconds()
	if r.perSecond == 0 {
		r.perSecond = now
	}
	r.perSecond += (now - r.perSecond) / 4
}

func (r *rate) known() bool { return r.perSecond > 0 }

// lasts is how long so many tokens take; only a known rate says it.
func (r *rate) lasts(tokens int) time.Duration {
	return time.Duration(float64(tokens) / r.perSecond * float64(time.Second))
}
