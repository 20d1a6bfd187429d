package prompt

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
)

// Options is what a request says besides its input, every value in its range. Defaults gives what holds where a request says
// nothing; the zero value of a field is not always that.
type Options struct {
	// How tokens are chosen; engine.SlotParams says what the knobs mean.
	Temperature, TopP, MinP, TypicalP                    float32
	RepetitionPenalty, PresencePenalty, FrequencyPenalty float32
	TopK, PenaltyWindow                                  int32
	Bias                                                 map[int32]float32
	Allowed                                              []int32 // nil: every token
	Seed                                                 *uint64 // nil: one is drawn

	// When to stop.
	MaxTokens   int
	Context     int // tokens of the prompt and one continuation together; 0: the model's own context
	MinTokens   int32
	Stop        []string
	StopIDs     []int32
	IncludeStop bool
	IgnoreEnds  bool // the model's own end tokens are ordinary ones

	// How much, and what is told of it.
	Sequences  int
	Candidates int32
	PromptTopN int // candidates of each scored prompt token; -1: the prompt is not scored
	NoText     bool
	Progress   bool

	// How it is computed.
	Class    engine.KernelClass // of the prompt
	Schedule generate.Schedule
	Resume   []generate.Resume
}

// Defaults are the options of a request that says nothing: it samples from the model's own distribution until the context ends.
func Defaults() Options {
	return Options{
		Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1, PenaltyWindow: -1,
		MaxTokens: math.MaxInt32, Sequences: 1, PromptTopN: -1,
	}
}
