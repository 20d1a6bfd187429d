package vectors

import "slices"

// Statistics has the results of the last round for each codeword, (subspaces, codewords).
type Statistics struct {
	Rows      []uint64  // of those trained on
	Variances []float64 // mean distance of these rows from the codeword, squared for L2; 0 without rows
}

// Spread summarises the variances of the codewords that have rows.
type Spread struct{ Least, Median, Most, Mean float64 }

// Spread returns nil if no codeword has rows.
func (s *Statistics) Spread() *Spread {
	var of []float64
	total := 0.0
	for c, n := range s.Rows {
		if n > 0 {
			of = append(of, s.Variances[c])
			total += s.Variances[c]
		}
	}
	if len(of) == 0 {
		return nil
	}
	slices.Sort(of)
	return &Spread{Least: of[0], Median: of[len(of)/2], Most: of[len(of)-1], Mean: total / float64(len(of))}
}

// measure reads the statistics of a finished training.
func (r *run) measure(e *End) (err error) {
	if r.job.codewords() > MaxStatistics {
		return nil
	}
	var s Statistics
	if s.Rows, err = r.trainer.Loads(); err != nil {
		return err
	}
	if s.Variances, err = r.trainer.Variances(); err != nil {
		return err
	}
	e.Variances = s.Spread()
	if r.job.Statistics {
		e.Statistics = &s
	}
	return nil
}
