package batch

import "time"

// Observer is told what a loop measures, by the loop's own goroutine: its methods return at once. A loop without one
// measures for Stats alone.
type Observer interface {
	// Admitted: a sequence got its slot for the first time, after waiting so long; of its prompt, so many tokens came from the
	// prefix cache.
	Admitted(waited time.Duration, prompt, cached int)
	// Stepped: a step has ended, of so many sequences and tokens, after so long on the device.
	Stepped(sequences, promptTokens, decodeTokens int, took time.Duration)
	// FirstToken and NextToken: a sequence got its first token so long after it arrived, or one so long after the one before.
	FirstToken(sinceArrival time.Duration)
	NextToken(gap time.Duration)
	// Preempted: a sequence lost its place.
	Preempted(Preemption)
	// Freed: what a cancelled sequence held is free again, so long and so many steps after it was cancelled.
	Freed(after time.Duration, steps int)
}

// Preemption says what becomes of what a preempted sequence had computed.
type Preemption int

// Preemptions.
const (
	Recompute Preemption = iota // it is computed again
	Swap                        // it waits in host memory
)
