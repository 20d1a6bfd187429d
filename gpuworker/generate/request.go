package generate

import (
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Request is one Generate call in the worker's terms; every value is already checked.
type Request struct {
	Prompt []int32
	Class  engine.KernelClass // computes the prompt
	// Params of every continuation; OutputIndex is set for each.
	Params      engine.SlotParams
	Sequences   int // continuations, >= 1
	MaxTokens   int
	Stop        []string
	StopIDs     []int32 // end tokens and the caller's own
	IncludeStop bool
	NoText      bool // token ids only
	PromptTopN  int  // candidates a scored prompt token; -1 = the prompt is not scored
	Progress    bool
}

// Tokens is a run of generated tokens of one continuation and the text they complete.
type Tokens struct {
	OutputIndex int
	TokenIndex  int // of the first
	Rows        []engine.RowResult
	Text        string // valid UTF-8
}

// Finished is the end of one continuation.
type Finished struct {
	OutputIndex int
	Reason      batch.Reason
	Stop        string // the stop string, when one matched
	StopID      int32  // the stop token, when Reason is Stop and Stop is empty
	Generated   int
	Timings     batch.Timings
}

// Sink is told what happens, never by two goroutines at once. An error ends the run.
type Sink interface {
	// Prefilled: so many prompt tokens are computed.
	Prefilled(n int) error
	// Scored: scores of prompt tokens, the first of them at index from.
	Scored(from int, rows []engine.RowResult) error
	Tokens(Tokens) error
	Finished(Finished) error
}

// Submitter is what Run asks of a step loop.
type Submitter interface {
	Submit(batch.Request) ([]*batch.Stream, error)
}

// TextDecoder turns token ids into valid UTF-8 text, piece by piece.
type TextDecoder interface {
	Push(id int32) (string, error)
	Flush() string
}
