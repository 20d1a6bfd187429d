package route

import (
	"math"
	"slices"
)

// Request is what routing needs of a request.
type Request struct {
	// Model is required.
	Model string
	// Digest and ClassID are what the model and the worker must have; empty is any.
	Digest, ClassID string
	// Length is how many tokens its longest sequence may have, the prompt counted: exact for token ids, likely for text, which nobody has
	// tokenised here. Unbounded: as many as a context holds. It is met by the longest context that serves the model even if that is
	// shorter. 0: no context is too short.
	Length int64
	// Context is the shortest context that it may go to, even if no worker has one; 0 is any.
	Context int64
	// Prompt is an estimate of the prompt's length; 0 for what computes none.
	Prompt int64
	// Sequences is how many places it takes; 0 for what is no generation.
	Sequences int64
	// Tokens is what the request may need in all: its prompt and what it generates, estimated where not stated.
	Tokens int64
	// Keys are of the request's prefixes, the shortest first, with the tokens that each stands for, ascending; a request that does
	// not use the cache has none.
	Keys []Key
	// RoutingKey is the caller's own: requests with equal ones go to one worker where that can be; empty is none.
	RoutingKey string
	// Priority and Tenant order what waits for a place; higher is more urgent.
	Priority int32
	Tenant   string
	// Resumes is whether this process has sent tokens of it already: it has had its turn, and waits rather than fails. A caller that
	// says so itself waits as others do.
	Resumes bool
	// Arrived is when the call came, in nanoseconds of the Unix clock, of one that had a place before and lost it with its worker: it waits from then on, and nobody who came
	// later takes its place in a queue. 0: it has had none.
	Arrived int64
	// Exclude are ids of workers that have been tried.
	Exclude []string
	// Unloaded are ids of workers that have said, of this request, that they have the model no more: that is newer than their
	// reports.
	Unloaded []string
	// MaxInFlight is how many requests a worker may have from this process; 0 is no bound.
	MaxInFlight int64
	// Tie chooses among equals; any value, another one for each request.
	Tie uint64
}

// Unbounded is the length of a request that states no max_tokens.
const Unbounded = math.MaxInt64

// context returns the shortest context that may serve the request where the longest one that serves the model has so many tokens. Two
// equal requests have equal lengths, so, whichever worker is chosen.
func (r *Request) context(longest int64) int64 { return max(r.Context, min(r.Length, longest)) }

// Reaches is whether no worker suits the request that does not suit another, which needs a context of at least reach tokens.
func (r *Request) Reaches(other *Request, reach int64) bool {
	return max(r.Context, r.Length) >= reach && r.Digest == other.Digest && r.ClassID == other.ClassID && len(r.Unloaded) == 0
}

// Key is one prefix of a request.
type Key struct {
	Key    uint64
	Tokens int64 // estimated where the request is text
}

// Pinned is whether only some of a model's workers may serve it.
func (r *Request) Pinned() bool {
	return r.Context > 0 || r.Digest != "" || r.ClassID != "" || len(r.Exclude)+len(r.Unloaded) > 0
}

// passes is whether a worker is passed over.
func (r *Request) passes(id string) bool {
	return len(r.Exclude)+len(r.Unloaded) > 0 && (slices.Contains(r.Exclude, id) || slices.Contains(r.Unloaded, id))
}
