package batch

import (
	"errors"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
)

// Sentinels of the loop; match with errors.Is.
var (
	// ErrClosed: the loop has ended or is draining.
	ErrClosed = errors.New("the model is being taken out of service")
	// ErrCancelled: the reader cancelled the sequence.
	ErrCancelled = errors.New("cancelled")
	// ErrFull: the queue is full (load shedding).
	ErrFull = errors.New("too many requests waiting")
	// ErrQueueTimeout: the request waited too long for its first slot. It comes as a *WaitError.
	ErrQueueTimeout = errors.New("waited too long for a slot")
	// ErrTooLong: the request can never fit the context or the KV cache.
	ErrTooLong = errors.New("prompt too long")
	// ErrBadLogits: the model computed NaN for this request. Others continue.
	ErrBadLogits = errors.New("the model computed logits that are not numbers")
	// ErrNoToken: the sampling parameters left no token to choose from.
	ErrNoToken = errors.New("no token is left to choose from")
	// ErrGuide: the grammar of the request came to a state without a mask; it wraps guide.ErrStuck or
	// guide.ErrWork.
	ErrGuide = errors.New("the grammar cannot be followed")
	// ErrSlowReader: the reader paused its sequence for longer than the stall limit while others
	// waited.
	ErrSlowReader = errors.New("the reader is too slow")
	// ErrStepFailed: the device failed, or its runner stopped returning results. It ends every
	// sequence of the loop. A refused step does not count: the sequence to blame ends with the
	// engine's own error.
	ErrStepFailed = errors.New("step failed")
)

// Request is one prompt and the continuations to generate from it, each a sequence with its own
// stream.
type Request struct {
	Prompt []int32
	// Class computes the prompt. Generated tokens always use the decode class.
	Class engine.KernelClass
	// Params apply to every continuation. The loop sets PromptLength and OutputIndex. Suppressed
	// ids are suppressed until MinTokens are generated.
	Params engine.SlotParams
	// MaxTokens ends a continuation; its resumed tokens count. 0 computes the prompt only. Context
	// and KV cache cap it.
	MaxTokens int
	// Logprobs states that the caller reads the logprob and rank of each token. Without it, tokens that a grammar
	// forces may have none.
	Logprobs bool
	// StopIDs end a continuation when sampled.
	StopIDs []int32
	// PromptTopN >= 0 scores every prompt token but the first, with this many candidates, on the
	// first continuation. -1 does not.
	PromptTopN int
	// Pool ends the sequence with a vector of the prompt in Done.Vector. Choices ends it with the
	// logprobs of these ids as the next token, in Done.Choices. Both need MaxTokens 0, one
	// continuation and no scores.
	Pool    Pooling
	Choices []int32
	// Progress requests an event after each prefill chunk of the first continuation.
	Progress bool
	// Continuations has at least one entry. They share the blocks of the prompt.
	Continuations []Continuation
	// Resumed states that the caller already received a part of the answer, though perhaps not of
	// these continuations. MaxQueueTime does not apply.
	Resumed bool
	// Priority orders requests; higher is more urgent.
	Priority int32
	// Tenant is charged for the request. Tenants of equal priority share tokens fairly.
	Tenant string
	// Salt separates cached prefixes from those of requests with another salt. Bypass neither uses
	// nor fills the prefix cache.
	Salt   string
	Bypass bool
	// Shared is how many leading tokens of the prompt other requests may find in the prefix cache; 0
	// = all. Later tokens are never shared, and would displace blocks that are.
	Shared int
	// Keys name prefixes of the prompt, shortest first. Loop.Prefixes reports them while they are
	// cached.
	Keys []PrefixKey
	// ID names the request in the log; it may be empty.
	ID string
}

// Continuation is one answer to a prompt.
type Continuation struct {
	OutputIndex int32
	// Resumed is the part of the answer that was generated elsewhere before. It is computed again
	// and never delivered. It has at most MaxTokens-1 ids, none of them in StopIDs.
	Resumed []int32
	// Guide is the state of the grammar that the answer obeys, after the resumed ids. The zero value is
	// no grammar. Its end tokens must be in StopIDs.
	Guide guide.State
}

// PrefixKey names the first Tokens tokens of a prompt for routing by cached prefixes.
type PrefixKey struct {
	Key    uint64
	Tokens int
}

// Reason is why a sequence ended without error.
type Reason int

// Reasons.
const (
	Length Reason = iota + 1 // MaxTokens, or the end of the context
	Stop                     // one of StopIDs
)

// Event is one event of a sequence. Exactly one field is set.
type Event struct {
	Prefilled int                // prompt tokens computed so far
	Scored    []engine.RowResult // scores of prompt tokens, in order, from the second on
	Token     *engine.RowResult  // a generated token
	Done      *Done              // the last event
}

// Done is the end of a sequence.
type Done struct {
	Reason    Reason
	StopID    int32 // when Reason is Stop
	Generated int
	Vector    []float32 // with Request.Pool
	Choices   []float32 // with Request.Choices
}

// Timings is where a sequence's time went so far.
type Timings struct {
	Queue   time.Duration // from arrival to the first step
	Prefill time.Duration // from the first step to the first token
	Decode  time.Duration // from the first token to the last
	// Steps is the number of steps that contained it, and StepTime their total time on the device,
	// which it shared with other sequences.
	Steps       int
	StepTime    time.Duration
	Preemptions int
}
