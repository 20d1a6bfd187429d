package route

import (
	"math"
	"slices"
)

// Request holds the fields of a request that routing uses.
type Request struct {
	// Model is required.
	Model string
	// Digest and ClassID are those that the model and the worker must have; empty: any.
	Digest, ClassID string
	// Length is how many tokens the request's longest sequence may have, with its prompt. It is
	// exact for token ids, and an estimate for text, which is not tokenized here. Unbounded means
	// as many as a context holds. The longest context that serves the model satisfies it, even if
	// that is shorter. 0: no context is too short.
	Length int64
	// Context is the shortest context that the request may go to, even if no worker has one; 0: any.
	Context int64
	// Prompt is an estimate of the prompt's tokens; 0 if the request computes none.
	Prompt int64
	// Sequences is how many slots the request needs; 0 if it computes no tokens.
	Sequences int64
	// Tokens is how many tokens the request may need in all: its prompt and its output, estimated
	// if it does not state them.
	Tokens int64
	// Keys are the keys of the prompt's prefixes, the shortest first. They are empty if the request
	// does not use the prefix cache.
	Keys []Key
	// RoutingKey is chosen by the caller: requests with equal keys go to one worker if possible;
	// empty: none.
	RoutingKey string
	// Priority and Tenant order requests that wait for a slot. A higher priority is more urgent.
	Priority int32
	Tenant   string
	// Resumes means that this process has sent tokens of the request, so that the request waits and
	// does not fail. A request whose caller resumes it waits as any other does.
	Resumes bool
	// Arrived is the arrival time, in nanoseconds of the Unix clock, of a call that had a slot and
	// lost it with its worker. The call keeps its position in the queue by it, and no newcomer
	// displaces it. 0: it had none.
	Arrived int64
	// Exclude are the ids of workers that were tried.
	Exclude []string
	// Unloaded are the ids of workers that have refused this request because they have unloaded the
	// model. That is newer than their reports.
	Unloaded []string
	// MaxInFlight is how many requests of this process a worker may have; 0: no bound.
	MaxInFlight int64
	// Tie decides between equal workers. It should be random for each request.
	Tie uint64
}

// Unbounded is the length of a request without max_tokens.
const Unbounded = math.MaxInt64

// context returns the shortest context that may serve the request, if the longest one that serves
// the model has longest tokens. Two equal requests therefore have equal lengths, whichever worker
// is chosen.
func (r *Request) context(longest int64) int64 { return max(r.Context, min(r.Length, longest)) }

// Reaches reports whether every worker that suits the request suits another one, too, which needs a
// context of at least reach tokens.
func (r *Request) Reaches(other *Request, reach int64) bool {
	return max(r.Context, r.Length) >= reach && r.Digest == other.Digest && r.ClassID == other.ClassID && len(r.Unloaded) == 0
}

// Key is the hash of one prefix of a prompt, and the tokens that it stands for.
type Key struct {
	Key    uint64
	Tokens int64 // an estimate if the request is text
}

// Pinned reports whether the request accepts only some of a model's workers.
func (r *Request) Pinned() bool {
	return r.Context > 0 || r.Digest != "" || r.ClassID != "" || len(r.Exclude)+len(r.Unloaded) > 0
}

// skips reports whether the request excludes a worker.
func (r *Request) skips(id string) bool {
	return len(r.Exclude)+len(r.Unloaded) > 0 && (slices.Contains(r.Exclude, id) || slices.Contains(r.Unloaded, id))
}
