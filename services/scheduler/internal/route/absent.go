package route

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// unknown is the refusal of a scheduler that has not heard of its workers.
func unknown(s *Snapshot) error {
	return refuse(ErrFleetUnknown, "this scheduler has not heard from its workers yet: try again",
		"workers", strconv.Itoa(len(s.Workers)))
}

// ambiguous is the refusal of a name that has several digests.
func ambiguous(r *Request, digests []string) error {
	return refuse(ErrAmbiguousModel, fmt.Sprintf("model %q is served with the digests %s: "+
		"set expect_model_digest, or unload one", r.Model, strings.Join(digests, ", ")),
		"model", r.Model, "digests", strings.Join(digests, ","))
}

// otherDigest is the refusal of a digest that nobody serves.
func otherDigest(r *Request, digests []string) error {
	return refuse(ErrDigestMismatch, fmt.Sprintf("model %q has digest %s and the request expects %s: "+
		"load the model that is meant, or leave expect_model_digest out", r.Model, strings.Join(digests, ", "), r.Digest),
		"model", r.Model, "digests", strings.Join(digests, ","), "expected", r.Digest)
}

// otherClass is the refusal of a class that nobody has.
func otherClass(r *Request) error {
	return refuse(ErrClassMismatch, fmt.Sprintf("no worker of class %s serves model %q: "+
		"start one, or leave expect_class_id out", r.ClassID, r.Model), "model", r.Model, "expected", r.ClassID)
}

// tooShort returns the refusal of a request that may need a longer context than the workers have that have not failed it.
func (w *work) tooShort(s *Snapshot, needs int64) error {
	r := &w.request
	refusal := refuse(ErrNoWorker, fmt.Sprintf("no worker that may take it serves model %q with a context of %d tokens, which it may need; "+
		"the longest has %d: try again, or load the model with a larger --context", r.Model, needs, w.longest),
		"model", r.Model, "context_length", strconv.FormatInt(w.longest, 10), "needed_tokens", strconv.FormatInt(needs, 10))
	refusal.Unready = w.unready(s, needs)
	return refusal
}

// unready reports whether a worker that has the request's model, with a context of at least needs tokens, is connected and NOT_READY.
func (w *work) unready(s *Snapshot, needs int64) bool {
	r := &w.request
	return slices.ContainsFunc(s.Workers, func(other Worker) bool {
		m := other.model(r.Model)
		return other.Connected && other.State == NotReady && m != nil && m.ContextLength >= needs &&
			slices.Contains(w.pool.digests, m.Digest) && (r.Digest == "" || r.Digest == m.Digest)
	})
}

// Unready reports whether a refusal speaks of a moment only: a worker with a context that is long enough is connected and NOT_READY.
func Unready(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Unready
}

// absent says why no worker serves the model.
func absent(s *Snapshot, r *Request) error {
	connected, could, starting, digests := 0, []string{}, []string{}, []string{}
	loading, onDisk, unusable, loadable, coming, returns := false, false, false, false, false, false
	for i := range s.Workers {
		w := &s.Workers[i]
		m := w.model(r.Model)
		if m != nil && m.Ready && !w.Serves() {
			could = append(could, name(w))
			returns = returns || !w.Connected || w.State == Starting
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
		refusal.Loadable, refusal.Returns = loadable, loadable && returns
		switch {
		case !loadable:
		case len(digests) == 1:
			refusal.Digest = digests[0]
		case r.Resumes: // a worker has told it
			refusal.Digest = r.Digest
		}
		return refusal
	}
	numbers := []string{"model", r.Model, "workers", strconv.Itoa(len(s.Workers)), "connected", strconv.Itoa(connected)}
	switch {
	case connected == 0:
		return refuse(ErrNoWorker, fmt.Sprintf("none of the %d workers configured can be reached: "+
			"start one, or check --workers", len(s.Workers)), numbers...)
	case r.Digest != "" && len(could) > 0 && !slices.Contains(digests, r.Digest):
		return otherDigest(r, digests)
	case len(could) > 0:
		// Who has been told of one worker alone that it is gone may take it when it is back: it asks without leaving it out.
		loadable = loadable && len(digests) == 1 && !(returns && len(r.Exclude) > 0)
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
