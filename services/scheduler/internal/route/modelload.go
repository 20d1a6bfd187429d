package route

import (
	"sync"
	"sync/atomic"
)

// ModelLoad counts what runs and waits of one model on one worker: this process's own as of now, and what the worker's reports show
// beyond that, which is of other schedulers and of callers that came to the worker themselves. Safe for concurrent use; the zero
// value is idle.
type ModelLoad struct {
	sequences count
	prefill   count        // prompt tokens not computed yet
	stalled   atomic.Int64 // sequences that use no place: their readers do not read
	mu        sync.Mutex   // held by who changes a count
}

// Report is what a worker's report says of a model, of everybody's sequences there.
type Report struct {
	// Running and Waiting are sequences; Stalled are those of both that hold no place against others.
	Running, Waiting, Stalled int64
	// Prefill is how many prompt tokens are not computed yet.
	Prefill int64
}

// take counts sequences, and the prompt tokens to be computed for them, unless the worker would then have more than most
// sequences; most 0 is no bound.
func (l *ModelLoad) take(sequences, prefill, most int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most > 0 && sequences > 0 && l.Busy()+sequences > most {
		return false
	}
	l.sequences.add(sequences)
	l.prefill.add(prefill)
	return true
}

// started takes prompt tokens off: they are computed, or will never be.
func (l *ModelLoad) started(prefill int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prefill.add(-prefill)
}

// ended takes sequences off.
func (l *ModelLoad) ended(sequences int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequences.add(-sequences)
}

// Reported takes a report. A worker gives the place of a reader that does not read to another sequence that waits, so a place is free
// for each that it says is stalled. What merely waits there while places are free does not say so: prompts wait for each other.
func (l *ModelLoad) Reported(r Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequences.reported(r.Running + r.Waiting)
	l.prefill.reported(r.Prefill)
	l.stalled.Store(r.Stalled)
}

// Sequences are this process's own.
func (l *ModelLoad) Sequences() int64 { return l.sequences.own.Load() }

// Foreign are the sequences of others, by the last report.
func (l *ModelLoad) Foreign() int64 { return l.sequences.foreign.Load() }

// Busy is how many sequences use a place or will, of everybody.
func (l *ModelLoad) Busy() int64 { return max(l.sequences.sum()-l.stalled.Load(), 0) }

// Prefill is how many prompt tokens wait to be computed there, of everybody.
func (l *ModelLoad) Prefill() int64 { return l.prefill.sum() }

// count is an own number and a foreign one. A report is older than what has happened since: what it shows beyond the most that
// was our own in the last two intervals between reports is taken to be of others. A foreign number is thereby at times too low for
// an interval, and never too high by what was our own: no place stands empty for it.
type count struct {
	own, foreign atomic.Int64
	most, before int64 // the most that own was since the last report, and in the interval before it
}

func (c *count) add(n int64) {
	now := c.own.Add(n)
	c.most = max(c.most, now)
}

func (c *count) reported(total int64) {
	c.foreign.Store(max(total-max(c.most, c.before), 0))
	c.most, c.before = c.own.Load(), c.most
}

func (c *count) sum() int64 { return c.own.Load() + c.foreign.Load() }
