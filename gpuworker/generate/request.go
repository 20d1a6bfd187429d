package generate

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tools"
)

// Request is one Generate call in the worker's terms. All values are already checked, except
// Resume.
type Request struct {
	ID     string // for logs; may be empty
	Prompt []int32
	Digest string             // of Prompt; Run ignores it
	Class  engine.KernelClass // computes the prompt
	// Params apply to every continuation. Run sets OutputIndex.
	Params      engine.SlotParams
	Sequences   int // continuations, >= 1
	MaxTokens   int
	Stop        []string
	StopIDs     []int32 // end tokens and the caller's own
	IncludeStop bool
	NoText      bool // token ids only
	// Parts returns the parser of an answer; nil: the answer has no parts.
	Parts func() *tools.Parser
	// Mark returns the name of a control token that Parts distinguishes; "" for others.
	Mark func(id int32) string
	// CallID returns the id of a call of a tool; Run ignores it.
	CallID func(promptDigest string, seed uint64, output, call int) string
	// Grammar constrains every continuation; nil: any text. Where a text may end, those of StopIDs
	// that are no text end it.
	Grammar *guide.Grammar
	// UsualSpelling gives text that the grammar forces the tokens of the model's tokenizer; see guide.State.
	UsualSpelling bool
	// Logprobs states that the sink reads the logprob and rank of each token. Without it, tokens that the grammar forces
	// may have none.
	Logprobs   bool
	PromptTopN int // candidates of a scored prompt token; -1 or resumed: not scored
	Progress   bool
	Schedule   Schedule
	// Resume is the part delivered before, by any worker: at most one entry for each continuation.
	// A continuation without an entry starts at its first token.
	Resume []Resume
}

// Schedule is the request's priority and tenant, and the cached prefixes that it shares; see
// batch.Request.
type Schedule struct {
	Priority int32
	Tenant   string
	Salt     string
	Bypass   bool
	Keys     []batch.PrefixKey
}

// Resumed reports whether the request continues an earlier one. Then nothing of the prompt is
// reported again.
func (r Request) Resumed() bool { return len(r.Resume) > 0 }

// answered reports whether the caller has a part of the answer: an entry of Resume with tokens or
// with an end. An entry with neither states only that the prompt was reported. Such a request had
// no slot yet, so the time limit of the queue applies.
func (r Request) answered() bool {
	return slices.ContainsFunc(r.Resume, func(e Resume) bool { return len(e.IDs) > 0 || e.Finished })
}

// batch is the loop's request for some of the continuations.
func (r Request) batch(live []*continuation) batch.Request {
	b := batch.Request{
		Prompt: r.Prompt, Class: r.Class, Params: r.Params, MaxTokens: r.MaxTokens, StopIDs: r.StopIDs,
		Logprobs: r.Logprobs, PromptTopN: r.PromptTopN, Progress: r.Progress, Resumed: r.answered(),
		Priority: r.Schedule.Priority, Tenant: r.Schedule.Tenant, Salt: r.Schedule.Salt, Bypass: r.Schedule.Bypass,
		Keys: r.Schedule.Keys, ID: r.ID,
	}
	for _, c := range live {
		b.Continuations = append(b.Continuations, batch.Continuation{OutputIndex: int32(c.index), Resumed: c.resumed, Guide: c.guide})
	}
	return b
}

// Submitter is the part of a step loop that Run uses.
type Submitter interface {
	Submit(batch.Request) ([]*batch.Stream, error)
	// Fit returns how many of the wanted tokens may follow a prompt of this length, or
	// batch.ErrTooLong.
	Fit(prompt, wanted int) (most int, err error)
}

// TextDecoder turns token ids into valid UTF-8 text, piece by piece.
type TextDecoder interface {
	Push(id int32) (string, error)
	Flush() string
}

// NewDecoder returns a text decoder. special makes it write out control tokens.
type NewDecoder func(special bool) TextDecoder
