package generate

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Request is one Generate call in the worker's terms; every value is already checked, but those of Resume that Run names.
type Request struct {
	ID     string // for logs; may be empty
	Prompt []int32
	Digest string             // of Prompt; Run does not look at it
	Class  engine.KernelClass // computes the prompt
	// Params of every continuation; OutputIndex is set for each.
	Params      engine.SlotParams
	Sequences   int // continuations, >= 1
	MaxTokens   int
	Stop        []string
	StopIDs     []int32 // end tokens and the caller's own
	IncludeStop bool
	NoText      bool // token ids only
	PromptTopN  int  // candidates a scored prompt token; -1 = the prompt is not scored. A resumed request does not score it.
	Progress    bool
	Schedule    Schedule
	// Resume is what was delivered before, by another worker or this one; at most one entry for each continuation. One that has
	// none, in a request that has some, begins at its first token.
	Resume []Resume
}

// Schedule is how a request stands among others, and which cached prefixes it shares with them; see batch.Request.
type Schedule struct {
	Priority int32
	Tenant   string
	Salt     string
	Bypass   bool
	Keys     []batch.PrefixKey
}

// Resumed reports whether the request continues one that was begun before: nothing of the prompt is reported again.
func (r Request) Resumed() bool { return len(r.Resume) > 0 }

// answered reports whether the caller has a part of the answer: an entry of Resume with tokens or with an end. An entry with neither
// says only that the prompt was reported. Such a request had no slot yet, so the limit of the queue holds for it.
func (r Request) answered() bool {
	return slices.ContainsFunc(r.Resume, func(e Resume) bool { return len(e.IDs) > 0 || e.Finished })
}

// batch is the loop's request for some of the continuations.
func (r Request) batch(live []*continuation) batch.Request {
	b := batch.Request{
		Prompt: r.Prompt, Class: r.Class, Params: r.Params, MaxTokens: r.MaxTokens, StopIDs: r.StopIDs,
		PromptTopN: r.PromptTopN, Progress: r.Progress, Resumed: r.answered(),
		Priority: r.Schedule.Priority, Tenant: r.Schedule.Tenant, Salt: r.Schedule.Salt, Bypass: r.Schedule.Bypass,
		Keys: r.Schedule.Keys, ID: r.ID,
	}
	for _, c := range live {
		b.Continuations = append(b.Continuations, batch.Continuation{OutputIndex: int32(c.index), Resumed: c.resumed})
	}
	return b
}

// Submitter is what Run asks of a step loop.
type Submitter interface {
	Submit(batch.Request) ([]*batch.Stream, error)
	// Fit is how many tokens may follow a prompt of so many, of those wanted, or batch.ErrTooLong.
	Fit(prompt, wanted int) (most int, err error)
}

// TextDecoder turns token ids into valid UTF-8 text, piece by piece.
type TextDecoder interface {
	Push(id int32) (string, error)
	Flush() string
}

// NewDecoder makes a text decoder; special says whether control tokens are written out.
type NewDecoder func(special bool) TextDecoder
