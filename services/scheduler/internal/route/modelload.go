package route

import (
	"sync"
	"sync/atomic"
)

// ModelLoad counts the sequences and the waiting prompt tokens of one model on one worker. It has
// this process's own, as of now, and those of other schedulers and of the worker's own callers, as
// of the last report. It is safe for concurrent use. The zero value is idle.
type ModelLoad struct {
	sequences Count
	prefill   Count        // prompt tokens that are not computed
	stalled   atomic.Int64 // sequences that use no slot, because their callers are slow consumers
	mu        sync.Mutex   // orders changes; readers do not lock it
}

// Report is a worker's report of one model, over the sequences of all schedulers and callers.
type Report struct {
	// Running and Waiting are sequences. Stalled are those of both that give their slot to others.
	Running, Waiting, Stalled int64
	// Prefill is how many prompt tokens are not computed.
	Prefill int64
}

// reserve adds sequences and the prompt tokens to be computed for them. It returns false, and adds
// nothing, if the worker would then have more than most sequences; most 0: no bound.
func (l *ModelLoad) reserve(sequences, prefill, most int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most > 0 && sequences > 0 && l.Busy()+sequences > most {
		return false
	}
	l.sequences.Add(sequences)
	l.prefill.Add(prefill)
	return true
}

// endPrefill subtracts prompt tokens that are computed, or never will be.
func (l *ModelLoad) endPrefill(prefill int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prefill.Add(-prefill)
}

// release subtracts sequences.
func (l *ModelLoad) release(sequences int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequences.Add(-sequences)
}

// SetReport stores a worker's report. A slot counts as free for each sequence that is stalled,
// because the worker gives the slot of a slow consumer to the next waiting sequence. A sequence
// that waits although slots are free is not stalled: prompts wait for each other.
func (l *ModelLoad) SetReport(r Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequences.SetTotal(r.Running + r.Waiting)
	l.prefill.SetTotal(r.Prefill)
	l.stalled.Store(r.Stalled)
}

// Sequences returns this process's own.
func (l *ModelLoad) Sequences() int64 { return l.sequences.Own() }

// Foreign returns the sequences of others, by the last report.
func (l *ModelLoad) Foreign() int64 { return l.sequences.Foreign() }

// Busy returns how many sequences of all callers use a slot, or will.
func (l *ModelLoad) Busy() int64 { return max(l.sequences.Sum()-l.stalled.Load(), 0) }

// Prefill returns how many prompt tokens of all callers wait to be computed.
func (l *ModelLoad) Prefill() int64 { return l.prefill.Sum() }

// Count is a number of this process and one of all others together. A report is older than what
// happened since: whatever it shows beyond the maximum that was this process's own in the last two
// intervals between reports belongs to others. So the foreign number may be too low for an
// interval, but it never counts this process's own work twice: no slot stays empty for it.
//
// Calls of Add and SetTotal must not overlap; the others are safe for concurrent use. The zero
// value is zero.
type Count struct {
	own, foreign atomic.Int64
	most, before int64 // maximum of own since the last report, and in the interval before it
}

// Add changes this process's own number.
func (c *Count) Add(n int64) { c.most = max(c.most, c.own.Add(n)) }

// SetTotal stores the total of a report.
func (c *Count) SetTotal(total int64) {
	c.foreign.Store(max(total-max(c.most, c.before), 0))
	c.most, c.before = c.own.Load(), c.most
}

// Own returns this process's number.
func (c *Count) Own() int64 { return c.own.Load() }

// Foreign returns the number of others, by the last report.
func (c *Count) Foreign() int64 { return c.foreign.Load() }

// Sum returns both together.
func (c *Count) Sum() int64 { return c.own.Load() + c.foreign.Load() }
