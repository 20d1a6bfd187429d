package prompt

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tools"
)

// Options is everything of a request except its input, all values in range. Start from Defaults,
// because the zero value of a field is not always its default.
type Options struct {
	// Sampling; see engine.SlotParams.
	Temperature, TopP, MinP, TypicalP                    float32
	RepetitionPenalty, PresencePenalty, FrequencyPenalty float32
	TopK, PenaltyWindow                                  int32
	Bias                                                 map[int32]float32
	Allowed                                              []int32 // nil: every token
	Seed                                                 *uint64 // nil: random

	// When to stop.
	MaxTokens   int
	Context     int // prompt and one continuation together, in tokens; 0: the model's context
	MinTokens   int32
	Stop        []string
	StopIDs     []int32
	IncludeStop bool
	Grammar     *guide.Grammar
	IgnoreEnds  bool // treat the model's end tokens as ordinary ones

	// Size and content of the answer.
	Sequences  int
	Candidates int32
	Logprobs   bool // the logprob and rank of each token are wanted
	PromptTopN int  // candidates of each scored prompt token; -1: the prompt is not scored
	NoText     bool
	Progress   bool
	Parts      func() *tools.Parser // nil: the answer has no parts
	Mark       func(id int32) string
	CallID     func(promptDigest string, seed uint64, output, call int) string

	// Scheduling.
	Class    engine.KernelClass // of the prompt
	Schedule generate.Schedule
	Resume   []generate.Resume
}

// Defaults are the options of an empty request: sample from the model's own distribution until the
// context ends.
func Defaults() Options {
	return Options{
		Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1, PenaltyWindow: -1,
		MaxTokens: math.MaxInt32, Sequences: 1, PromptTopN: -1,
	}
}
