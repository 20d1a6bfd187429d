package loadreport

import "time"

// window is the time over which a rate is computed, and maxSamples the number of samples for that.
const (
	window     = 5 * time.Second
	maxSamples = int(window/maxAge) + 1
)

// rates computes rates over the last seconds from counts. It is not safe for concurrent use.
type rates struct{ samples []sample } // oldest first

type sample struct {
	time          time.Time
	ended, failed int64 // generations since the start, and those that the server failed
}

// add adds a sample and returns both rates a second, over the window or the shorter time that
// samples cover. It returns 0 before there is a second sample.
func (r *rates) add(s sample) (ended, failed float64) {
	r.samples = append(r.samples, s)
	for len(r.samples) > maxSamples || len(r.samples) > 2 && s.time.Sub(r.samples[1].time) >= window {
		r.samples = append(r.samples[:0], r.samples[1:]...)
	}
	first := r.samples[0]
	seconds := s.time.Sub(first.time).Seconds()
	if seconds <= 0 {
		return 0, 0
	}
	return float64(s.ended-first.ended) / seconds, float64(s.failed-first.failed) / seconds
}
