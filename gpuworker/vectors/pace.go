package vectors

import "time"

const (
	// sliceBudget is the longest slice of a training: tokens that come meanwhile wait for no more than that.
	sliceBudget = 5 * time.Millisecond
	// leastBudget is the shortest that is asked for: below, beginning a slice costs as much as the slice.
	leastBudget = 100 * time.Microsecond
	// defaultShare is the share of the time that trainings compute while models have work.
	defaultShare = 0.1
	// rare is how many steps of a model at least lie behind one that a slice has held up for longer than noticeable.
	rare = 128
)

// pace decides how long a slice may be and how long a training rests behind it while models have work. What it decides changes no
// bit of any codebook.
type pace struct {
	share float64
	steps uint64    // the models' at the last look
	at    time.Time // of it
	step  time.Duration
}

// look takes in what the models have done; the mean time of a step between two looks is what a slice is measured by.
func (p *pace) look(t Tokens, now time.Time) {
	if done := t.Steps - p.steps; t.Busy && !p.at.IsZero() && t.Steps > p.steps {
		p.step = now.Sub(p.at) / time.Duration(done)
	}
	p.steps, p.at = t.Steps, now
	if !t.Busy { // the time until work comes is no step's
		p.at = time.Time{}
	}
}

// budget is how long the next slice may be: a tenth of a step holds nobody up who could tell.
func (p *pace) budget(busy bool) time.Duration {
	if !busy || p.step == 0 {
		return sliceBudget
	}
	return min(max(p.step/10, leastBudget), sliceBudget)
}

// rest is how long to rest behind a slice that took so long. One that took much of a step, as an engine's smallest unit of work
// may, or as long as many, is followed by so many steps without one that fewer than a step in a hundred is held up.
func (p *pace) rest(took time.Duration) time.Duration {
	rest := time.Duration(float64(took) * (1/p.share - 1))
	if p.step > 0 && took > p.step/5 {
		rest = max(rest, rare*max(p.step, took))
	}
	return rest
}
