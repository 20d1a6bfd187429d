package model

import (
	"slices"
	"time"
)

// victims are the models to unload so that as many bytes as are short come free: of those unused for at least after, the longest
// unused first, and none whose bytes the others make up for. They are empty where all together are too few: a model is not
// unloaded in vain. from is in the order of age, the longest unused first.
func victims(short uint64, after time.Duration, from []Idle) []Idle {
	var chosen []Idle
	var sum uint64
	for _, m := range from {
		if sum < short && m.Age >= after {
			chosen = append(chosen, m)
			sum += m.Bytes
		}
	}
	if sum < short {
		return nil
	}
	// Those used last are spared first.
	for i := len(chosen) - 1; i >= 0; i-- {
		if sum-chosen[i].Bytes >= short {
			sum -= chosen[i].Bytes
			chosen = slices.Delete(chosen, i, i+1)
		}
	}
	return chosen
}

// roomIn is how long it takes until victims finds some, if none is used meanwhile; 0: they never would be enough.
func roomIn(short uint64, after time.Duration, from []Idle) time.Duration {
	var sum uint64
	for _, m := range from { // ages fall, so that each is ready later than the one before
		if sum += m.Bytes; sum >= short {
			return max(after-m.Age, time.Millisecond)
		}
	}
	return 0
}
