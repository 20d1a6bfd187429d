package relay

import "sync/atomic"

// A retry costs a whole one, an answered call gives a tenth back: workers that fail many calls before their first frame get a
// tenth more calls than there are, and not three times as many.
const (
	budgetMax    = 10_000 // a thousand retries: what one lost worker leaves behind
	budgetRetry  = 10
	budgetAnswer = 1
)

// budget is what first attempts that failed may be tried again from: it stops storms. Resumes take nothing from it. Safe for
// concurrent use. Invariant: 0 <= left <= budgetMax.
type budget struct{ left atomic.Int64 }

// fill makes it whole.
func (b *budget) fill() { b.left.Store(budgetMax) }

// take takes a retry out, unless less than one is left.
func (b *budget) take() bool {
	for {
		left := b.left.Load()
		if left < budgetRetry {
			return false
		}
		if b.left.CompareAndSwap(left, left-budgetRetry) {
			return true
		}
	}
}

// answered gives back what a call that a worker answers earns.
func (b *budget) answered() {
	for {
		left := b.left.Load()
		if left >= budgetMax {
			return // most calls: nothing is written
		}
		if b.left.CompareAndSwap(left, left+budgetAnswer) {
			return
		}
	}
}
