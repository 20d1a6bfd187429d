package batch

import (
	"errors"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Sentinels of the loop; match with errors.Is.
var (
	// ErrClosed: the loop has ended or is draining; the request was not taken, or ended with it.
	ErrClosed = errors.New("the model is being taken out of service")
	// ErrCancelled: the reader cancelled the sequence.
	ErrCancelled = errors.New("cancelled")
	// ErrFull: as many requests wait as may; nothing was taken.
	ErrFull = errors.New("too many requests waiting")
	// ErrTooLong: the request can never fit the context or the KV cache.
	ErrTooLong = errors.New("prompt too long")
	// ErrBadLogits: the model computed NaN for this request; others go on.
	ErrBadLogits = errors.New("the model computed logits that are not numbers")
	// ErrNoToken: the sampling parameters left no token to choose from.
	ErrNoToken = errors.New("no token is left to choose from")
	// ErrSlowReader: the reader kept its sequence paused while others waited, for longer than the stall limit.
	ErrSlowReader = errors.New("the reader is too slow")
	// ErrStepFailed: the device failed, or keeps the result of a step; every sequence of the loop is lost. A step that the
	// engine refuses is no such failure: the sequences that it refuses alone end with the engine's own error.
	ErrStepFailed = errors.New("step failed")
)

// Request is one sequence to compute.
type Request struct {
	Prompt []int32
	// Class computes the prompt; generated tokens are always Decode.
	Class engine.KernelClass
	// Params, with PromptLength set by the loop. Suppressed ids hold while fewer than MinTokens are generated.
	Params engine.SlotParams
	// MaxTokens ends the sequence; 0 computes the prompt only. Capped by context and cache.
	MaxTokens int
	// StopIDs end the sequence when sampled.
	StopIDs []int32
	// PromptTopN >= 0 scores every prompt token but the first, with so many candidates; -1 does not.
	PromptTopN int
	// Progress asks for an event after each prefill chunk.
	Progress bool
}

// Reason says why a sequence ended well.
type Reason int

// Reasons.
const (
	Length Reason = iota + 1 // MaxTokens, or the context's end
	Stop                     // one of StopIDs
)

// Event is what happened to a sequence; exactly one of its parts is set.
type Event struct {
	Prefilled int                // prompt tokens computed so far
	Scored    []engine.RowResult // scores of prompt tokens, in order, from the second on
	Token     *engine.RowResult  // a generated token
	Done      *Done              // the end; the last event
}

// Done is the end of a sequence.
type Done struct {
	Reason    Reason
	StopID    int32 // when Reason is Stop
	Generated int
}

// Timings says where a sequence's time went so far.
type Timings struct {
	Queue   time.Duration // from arrival to the first step
	Prefill time.Duration // from the first step to the first token
	Decode  time.Duration // from the first token to the last
}
