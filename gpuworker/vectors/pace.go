package vectors

import "time"

const (
	// sliceBudget bounds a slice of a training, because tokens wait for its end.
	sliceBudget = 5 * time.Millisecond
	// leastBudget is the shortest slice: below it, the start of a slice costs as much as the slice.
	leastBudget = 100 * time.Microsecond
	// defaultShare is the share of the time that trainings compute while models have work.
	defaultShare = 0.1
	// rare is the least number of steps between two that a slice delays by more than noticeable.
	rare = 128
)

// pace decides how long a slice may be, and how long the training rests after it while models have
// work. Its decisions change no bit of any codebook.
type pace struct {
	share    float64
	steps    uint64    // of the models, when observed last
	observed time.Time // when observed last
	step     time.Duration
}

// observe updates the mean time of a step, by which slices are measured.
func (p *pace) observe(t Tokens, now time.Time) {
	if done := t.Steps - p.steps; t.Busy && !p.observed.IsZero() && t.Steps > p.steps {
		p.step = now.Sub(p.observed) / time.Duration(done)
	}
	p.steps, p.observed = t.Steps, now
	if !t.Busy { // the time until work arrives does not belong to a step
		p.observed = time.Time{}
	}
}

// budget returns how long the next slice may be: a tenth of a step delays tokens too little to be
// noticed.
func (p *pace) budget(busy bool) time.Duration {
	if !busy || p.step == 0 {
		return sliceBudget
	}
	return min(max(p.step/10, leastBudget), sliceBudget)
}

// rest returns how long to rest after a slice. A slice that was long compared with a step, because
// an engine has a smallest unit of work, is followed by enough steps without a slice that fewer
// than one step in a hundred is delayed.
func (p *pace) rest(took time.Duration) time.Duration {
	rest := time.Duration(float64(took) * (1/p.share - 1))
	if p.step > 0 && took > p.step/5 {
		rest = max(rest, rare*max(p.step, took))
	}
	return rest
}
