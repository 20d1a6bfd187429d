package chaos

import "time"

// pipe is how long after a fault tokens may still come that the worker sent before it.
const pipe = 250 * time.Millisecond

// interruption is where a fault met a stream between two of its tokens.
type interruption struct {
	record  *record
	fault   int           // index
	behind  int           // arrivals before the gap
	gap     time.Duration // between two arrivals, the longest about the fault
	resumed bool          // the stream went on while its worker could not send: another one continued it
	moved   bool          // it was resumed before, so that its worker is not known and need not be the one that was hurt
}

// interruptions are where faults met a stream. Its first worker is known from the stream; where it is after the first
// interruption only its scheduler knows, and then a gap counts as a fault's that holds its moment and is longer than the fault allows.
func interruptions(r *record, faults []Fault) (all []interruption) {
	worker, told := r.worker, time.Duration(0)
	for k, f := range faults {
		n := r.before(f.At)
		if n == 0 || n == len(r.arrivals) || r.ended <= f.At || f.At < told {
			continue // nothing had come, or everything had, or the pause is that of a fault before
		}
		if worker == "" {
			if gap := r.arrivals[n].at - r.arrivals[n-1].at; gap > gapAllowed[f.Kind] {
				all, told = append(all, interruption{record: r, fault: k, behind: n, gap: gap, moved: true}), r.arrivals[n].at
			}
			continue
		}
		after := r.before(f.At + pipe)
		if worker != f.Node || after == len(r.arrivals) {
			continue // elsewhere, or at its end before anybody could have missed a token
		}
		found := interruption{record: r, fault: k, resumed: f.Kind == Kill || r.arrivals[after].at < f.Over}
		for i := n; i <= after; i++ {
			if gap := r.arrivals[i].at - r.arrivals[i-1].at; gap > found.gap {
				found.gap, found.behind = gap, i
			}
		}
		all, told = append(all, found), r.arrivals[found.behind].at
		if found.resumed {
			worker = ""
		}
	}
	return all
}
