package route

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// unknown returns the refusal of a scheduler that has no reports of its workers yet.
func unknown(s *Snapshot) error {
	return Refuse(ErrFleetUnknown, "this scheduler has not heard from its workers yet: try again",
		"workers", strconv.Itoa(len(s.Workers)))
}

// ambiguous returns the refusal of a name that is served with several digests.
func ambiguous(r *Request, digests []string) error {
	return Refuse(ErrAmbiguousModel, fmt.Sprintf("model %q is served with the digests %s: "+
		"set expect_model_digest, or unload one", r.Model, strings.Join(digests, ", ")),
		"model", r.Model, "digests", strings.Join(digests, ","))
}

// otherDigest returns the refusal of a digest that no worker serves.
func otherDigest(r *Request, digests []string) error {
	return Refuse(ErrDigestMismatch, fmt.Sprintf("model %q has digest %s and the request expects %s: "+
		"load the model that is meant, or leave expect_model_digest out", r.Model, strings.Join(digests, ", "), r.Digest),
		"model", r.Model, "digests", strings.Join(digests, ","), "expected", r.Digest)
}

// otherClass returns the refusal of a class that no worker has.
func otherClass(r *Request) error {
	return Refuse(ErrClassMismatch, fmt.Sprintf("no worker of class %s serves model %q: "+
		"start one, or leave expect_class_id out", r.ClassID, r.Model), "model", r.Model, "expected", r.ClassID)
}

// tooShort returns the refusal of a request that may need a longer context than any worker has that
// has not failed it.
func (w *work) tooShort(s *Snapshot, needs int64) error {
	r := &w.request
	refusal := Refuse(ErrNoWorker, fmt.Sprintf("no worker that may take it serves model %q with a context of %d tokens, which it may need; "+
		"the longest has %d: try again, or load the model with a larger --context", r.Model, needs, w.longest),
		"model", r.Model, "context_length", strconv.FormatInt(w.longest, 10), "needed_tokens", strconv.FormatInt(needs, 10))
	refusal.Unready = w.unready(s, needs)
	return refusal
}

// unready reports whether a worker with the request's model and a context of at least needs tokens
// is connected and NOT_READY.
func (w *work) unready(s *Snapshot, needs int64) bool {
	r := &w.request
	return slices.ContainsFunc(s.Workers, func(other Worker) bool {
		m := other.model(r.Model)
		return other.Connected && other.State == NotReady && m != nil && m.ContextLength >= needs &&
			slices.Contains(w.pool.digests, m.Digest) && (r.Digest == "" || r.Digest == m.Digest)
	})
}

// Unready reports whether an error is a refusal that may end in a moment, because a worker with a
// long enough context is connected and NOT_READY.
func Unready(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Unready
}

// absent returns the refusal of a model that no worker serves, with the reason: what workers have
// of the model decides the sentinel, and whether a load would help.
func absent(s *Snapshot, r *Request) error {
	connected, holders, starting, digests := 0, []string{}, []string{}, []string{}
	loading, onDisk, unusable, loadable, arriving, returns := false, false, false, false, false, false
	for i := range s.Workers {
		w := &s.Workers[i]
		m := w.model(r.Model)
		if m != nil && m.Ready && !w.Serves() {
			holders = append(holders, name(w))
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
			arriving = arriving || m != nil
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
		case r.Resumes: // the stream's first worker reported it
			refusal.Digest = r.Digest
		}
		return refusal
	}
	numbers := []string{"model", r.Model, "workers", strconv.Itoa(len(s.Workers)), "connected", strconv.Itoa(connected)}
	switch {
	case connected == 0:
		return Refuse(ErrNoWorker, fmt.Sprintf("none of the %d workers configured can be reached: "+
			"start one, or check --workers", len(s.Workers)), numbers...)
	case r.Digest != "" && len(holders) > 0 && !slices.Contains(digests, r.Digest):
		return otherDigest(r, digests)
	case len(holders) > 0:
		// If the request excludes a worker that may come back, a load does not help: the relay
		// places the request again without the exclusion.
		loadable = loadable && len(digests) == 1 && !(returns && len(r.Exclude) > 0)
		return helps(Refuse(ErrNoWorker, fmt.Sprintf("model %q is on %s, which takes no requests now: try again, or load it elsewhere",
			r.Model, strings.Join(holders, ", ")), numbers...))
	case len(r.Exclude) > 0:
		return Refuse(ErrNoWorker, fmt.Sprintf("no other worker serves model %q", r.Model), numbers...)
	case len(starting) > 0:
		// A starting worker loads its models one after another, also after a crash, so a model that
		// it does not have yet may follow. A load elsewhere helps, unless the worker reports that
		// it loads this model.
		loadable = loadable && !arriving
		return helps(Refuse(ErrNoWorker, fmt.Sprintf("%s, which has model %q, is starting: try again",
			strings.Join(starting, ", "), r.Model), numbers...))
	case loading:
		return helps(Refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is being loaded or unloaded, or is out of service: "+
			"see ListModels, and wait or call LoadModel", r.Model), numbers...))
	case onDisk:
		return helps(Refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is on disk and not loaded: call LoadModel first", r.Model), numbers...))
	case unusable:
		return Refuse(ErrModelNotLoaded, fmt.Sprintf("model %q is on disk and its file cannot be loaded: see ListModels for why",
			r.Model), numbers...)
	}
	return Refuse(ErrUnknownModel, fmt.Sprintf("no worker has a model %q: see ListModels for those there are", r.Model), numbers...)
}

// name returns the name of a worker in messages.
func name(w *Worker) string {
	if w.ID != "" {
		return w.ID
	}
	return w.Address
}
