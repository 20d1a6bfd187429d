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
	// ErrQueueTimeout: the request has waited for its first place for as long as one may. It comes as a *WaitError.
	ErrQueueTimeout = errors.New("waited too long for a place")
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

// Request is one prompt and the continuations to compute of it, each a sequence with a stream of its own.
type Request struct {
	Prompt []int32
	// Class computes the prompt; generated tokens are always Decode.
	Class engine.KernelClass
	// Params of every continuation; the loop sets PromptLength and OutputIndex. Suppressed ids hold while fewer than MinTokens are
	// generated.
	Params engine.SlotParams
	// MaxTokens ends a continuation, its resumed tokens counted; 0 computes the prompt only. Capped by context and cache.
	MaxTokens int
	// StopIDs end a continuation when sampled.
	StopIDs []int32
	// PromptTopN >= 0 scores every prompt token but the first, with so many candidates, for the first continuation; -1 does not.
	PromptTopN int
	// Progress asks for an event after each prefill chunk, of the first continuation.
	Progress bool
	// Continuations are at least one. They share the prompt's blocks.
	Continuations []Continuation
	// Resumed: its caller has a token or an end of the answer, though of these continuations perhaps none. MaxQueueTime does not hold
	// for it.
	Resumed bool
	// Priority: higher is more urgent.
	Priority int32
	// Tenant is whose share of the machine the request uses: among equal priorities, tenants share tokens alike.
	Tenant string
	// Salt keeps cached prefixes apart from those of requests with another one; Bypass takes none and leaves none.
	Salt   string
	Bypass bool
	// Keys say which prefixes of the prompt the loop tells the world about while they are cached, shortest first.
	Keys []PrefixKey
	// ID names the request in the log; empty: nobody knows it by a name.
	ID string
}

// Continuation is one answer to a prompt.
type Continuation struct {
	OutputIndex int32
	// Resumed is what was generated of it before, elsewhere: it is computed again and never delivered. At most MaxTokens-1 ids,
	// none of them of StopIDs.
	Resumed []int32
}

// PrefixKey names the first Tokens tokens of a prompt to those who route by what is cached.
type PrefixKey struct {
	Key    uint64
	Tokens int
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
	// Steps is how many steps it was in, which together took StepTime on the device; others were in them too.
	Steps       int
	StepTime    time.Duration
	Preemptions int // times that it lost its place
}
