package sametest

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ask is all of a continuation that may decide its bits, and nothing else: no slot, no company, no priority.
type ask struct {
	model  int // of models
	prompt []int32
	class  engine.KernelClass // computes the prompt
	params engine.SlotParams  // PromptLength and OutputIndex are set
	tokens int                // to generate at most; 0 = the prompt only
	stops  []int32
	// expression is the grammar of the answer; empty: none
	expression string
	logprobs   bool // its reader compares the logprobs of tokens
	topN       int  // >= 0 scores the prompt with this many candidates; -1 does not
}

// key distinguishes asks. On a device of one class both classes are one ask: they have one answer.
func (a *ask) key(oneClass bool) string {
	class := a.class
	if oneClass {
		class = engine.Prefill
	}
	return fmt.Sprint(a.model, class, a.tokens, a.topN, a.stops, a.params, a.expression, a.logprobs, a.prompt)
}

// continuation is the same ask for another of its answers. Only the first has its prompt scored.
func (a ask) continuation(index int32) ask {
	a.params.OutputIndex = index
	if index > 0 {
		a.topN = -1
	}
	return a
}

// length is the most positions that the ask may fill.
func (a *ask) length() int { return len(a.prompt) + a.tokens }
