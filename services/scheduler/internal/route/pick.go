package route

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Request is what routing needs of a request.
type Request struct {
	// Model is required.
	Model string
	// Digest and ClassID are what the model and the worker must have; empty is any.
	Digest, ClassID string
	// PromptTokens is a lower bound of the prompt's length; 0 is not known.
	PromptTokens int64
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
	// Resumes is whether others have tokens of it already: it has waited its turn before, and waits rather than fails.
	Resumes bool
	// Exclude are ids of workers that have been tried.
	Exclude []string
	// Unloaded are ids of workers that have said, of this request, that they have the model no more: that is newer than their
	// reports.
	Unloaded []string
	// MaxInFlight is how many requests a worker may have from this process; 0 is no bound.
	MaxInFlight int64
	// Tie chooses among equals; any value.
	Tie uint64
}

// Key is one prefix of a request.
type Key struct {
	Key    uint64
	Tokens int64 // estimated where the request is text
}

// foreignTokens is what another scheduler's sequence is taken to need: reports count sequences, not tokens.
const foreignTokens = 256

// Pick returns the index in s.Workers of the worker that should serve r, or a *Refusal.
func Pick(s *Snapshot, r Request) (int, error) {
	if !s.Known {
		return 0, refuse(ErrFleetUnknown, "this scheduler has not heard from its workers yet: try again",
			"workers", strconv.Itoa(len(s.Workers)))
	}
	from := serving(s, r)
	if len(from) == 0 {
		return 0, absent(s, r)
	}
	digests := digestsOf(from)
	if r.Digest == "" && len(digests) > 1 {
		return 0, refuse(ErrAmbiguousModel, fmt.Sprintf("model %q is served with the digests %s: "+
			"set expect_model_digest, or unload one", r.Model, strings.Join(digests, ", ")),
			"model", r.Model, "digests", strings.Join(digests, ","))
	}
	from = keep(from, func(c candidate) bool { return r.Digest == "" || c.model.Digest == r.Digest })
	if len(from) == 0 {
		return 0, refuse(ErrDigestMismatch, fmt.Sprintf("model %q has digest %s and the request expects %s: "+
			"load the model that is meant, or leave expect_model_digest out", r.Model, strings.Join(digests, ", "), r.Digest),
			"model", r.Model, "digests", strings.Join(digests, ","), "expected", r.Digest)
	}
	from = keep(from, func(c candidate) bool { return r.ClassID == "" || c.model.ClassID == r.ClassID })
	if len(from) == 0 {
		return 0, refuse(ErrClassMismatch, fmt.Sprintf("no worker of class %s serves model %q: "+
			"start one, or leave expect_class_id out", r.ClassID, r.Model), "model", r.Model, "expected", r.ClassID)
	}
	able := len(from)
	from = keep(from, func(c candidate) bool { return r.MaxInFlight == 0 || c.worker.Load.InFlight() < r.MaxInFlight })
	if len(from) == 0 {
		return 0, refuse(ErrWorkersFull, fmt.Sprintf("all %d workers with model %q have %d requests in flight: try again later",
			able, r.Model, r.MaxInFlight),
			"model", r.Model, "workers", strconv.Itoa(able), "max_in_flight", strconv.FormatInt(r.MaxInFlight, 10))
	}
	// A prompt that fits nowhere goes to a worker all the same: it knows the exact length and refuses with it.
	fits := func(c candidate) bool { return c.model.ContextLength == 0 || r.PromptTokens <= c.model.ContextLength }
	if slices.ContainsFunc(from, fits) {
		from = keep(from, fits)
	}
	return least(from, r.Tie), nil
}

// candidate is a worker that serves the model.
type candidate struct {
	index  int
	worker *Worker
	model  *Model
}

// serving are the workers that serve the model and have not been tried.
func serving(s *Snapshot, r Request) []candidate {
	from := make([]candidate, 0, len(s.Workers))
	for i := range s.Workers {
		w := &s.Workers[i]
		if m := w.model(r.Model); w.Serves() && m != nil && m.Ready && !slices.Contains(r.Exclude, w.ID) &&
			!slices.Contains(r.Unloaded, w.ID) {
			from = append(from, candidate{index: i, worker: w, model: m})
		}
	}
	return from
}

// keep returns the candidates for which holds is true. It reuses the slice.
func keep(from []candidate, holds func(candidate) bool) []candidate {
	return slices.DeleteFunc(from, func(c candidate) bool { return !holds(c) })
}

// least is the index of the candidate with the fewest outstanding tokens; among equals tie chooses.
func least(from []candidate, tie uint64) int {
	var best []int
	var lowest int64
	for _, c := range from {
		switch score := score(c.worker); {
		case len(best) == 0 || score < lowest:
			best, lowest = append(best[:0], c.index), score
		case score == lowest:
			best = append(best, c.index)
		}
	}
	return best[tie%uint64(len(best))]
}

// score is this process's outstanding tokens there, plus an estimate for the sequences of others.
func score(w *Worker) int64 {
	return max(w.Load.Tokens(), 0) + foreignTokens*max(w.Sequences-w.Load.InFlight(), 0)
}

// absent says why no worker serves the model.
func absent(s *Snapshot, r Request) error {
	connected, could, starting, digests := 0, []string{}, []string{}, []string{}
	loading, onDisk, unusable, loadable, coming := false, false, false, false, false
	for i := range s.Workers {
		w := &s.Workers[i]
		m := w.model(r.Model)
		if m != nil && m.Ready && !w.Serves() {
			could = append(could, name(w))
			if !slices.Contains(digests, m.Digest) {
				digests = append(digests, m.Digest)
			}
		}
		if !w.Connected {
			continue
		}
		connected++
		file := slices.Contains(w.Files, r.Model)
		if w.State == Starting && (m != nil || file) {
			starting = append(starting, name(w))
			coming = coming || m != nil
		}
		loading = loading || m != nil && !m.Ready
		onDisk = onDisk || file
		loadable = loadable || file && w.Serves() && !slices.Contains(r.Exclude, w.ID)
		unusable = unusable || slices.Contains(w.Unusable, r.Model)
	}
	helps := func(refusal *Refusal) *Refusal {
		if refusal.Loadable = loadable; loadable && len(digests) == 1 {
			refusal.Digest = digests[0]
		}
		return refusal
	}
	numbers := []string{"model", r.Model, "workers", strconv.Itoa(len(s.Workers)), "connected", strconv.Itoa(connected)}
	switch {
	case connected == 0:
		return refuse(ErrNoWorker, fmt.Sprintf("none of the %d workers configured can be reached: "+
			"start one, or check --workers", len(s.Workers)), numbers...)
	case len(could) > 0:
		loadable = loadable && len(digests) == 1
		return helps(refuse(ErrNoWorker, fmt.Sprintf("model %q is on %s, which takes no requests now: try again, or load it elsewhere",
			r.Model, strings.Join(could, ", ")), numbers...))
	case len(r.Exclude) > 0:
		return refuse(ErrNoWorker, fmt.Sprintf("no other worker serves model %q", r.Model), numbers...)
	case len(starting) > 0:
		// It is loading what it serves from the start, after a crash too: what is missing now says nothing.
		// A load elsewhere helps unless it is seen to be on its way there.
		loadable = loadable && !coming
		return helps(refuse(ErrNoWorker, fmt.Sprintf("%s, which has model %q, is starting: try again",
			strings.Join(starting, ", "), r.Model), numbers...))
	case loading:
		return helps(refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is being loaded or unloaded, or is out of service: "+
			"see ListModels, and wait or call LoadModel", r.Model), numbers...))
	case onDisk:
		return helps(refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is on disk and not loaded: call LoadModel first", r.Model), numbers...))
	case unusable:
		return refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is on disk and its file cannot be loaded: see ListModels for why",
			r.Model), numbers...)
	}
	return refuse(ErrUnknownModel, fmt.Sprintf("no worker has a model %q: see ListModels for those there are", r.Model), numbers...)
}

// name is how a message calls a worker.
func name(w *Worker) string {
	if w.ID != "" {
		return w.ID
	}
	return w.Address
}

// digestsOf are the distinct digests of the candidates, sorted.
func digestsOf(from []candidate) []string {
	var digests []string
	for _, c := range from {
		if !slices.Contains(digests, c.model.Digest) {
			digests = append(digests, c.model.Digest)
		}
	}
	slices.Sort(digests)
	return digests
}
