package loadreport

import "time"

// window is over how long a rate is taken, and most how many samples are kept for that.
const (
	window = 5 * time.Second
	most   = int(window/every) + 1
)

// rates turns counts into rates over the last seconds. Not safe for concurrent use.
type rates struct{ samples []sample } // oldest first

type sample struct {
	at           time.Time
	ended, wrong int64 // generations since the beginning, and those of them that the server failed
}

// add takes a sample and gives both rates a second, over the window or what there is of it; 0 before there is a second sample.
func (r *rates) add(s sample) (ended, wrong float64) {
	r.samples = append(r.samples, s)
	for len(r.samples) > most || len(r.samples) > 2 && s.at.Sub(r.samples[1].at) >= window {
		r.samples = append(r.samples[:0], r.samples[1:]...)
	}
	first := r.samples[0]
	seconds := s.at.Sub(first.at).Seconds()
	if seconds <= 0 {
		return 0, 0
	}
	return float64(s.ended-first.ended) / seconds, float64(s.wrong-first.wrong) / seconds
}
