package route

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Sentinels of PickCodebook and PickTraining; each comes inside a *Refusal with the numbers.
var (
	// ErrUnknownCodebook: no worker has the codebook, in memory or on disk.
	ErrUnknownCodebook = errors.New("unknown codebook")
	// ErrCodebookNotLoaded: the codebook is on disk and serves nowhere.
	ErrCodebookNotLoaded = errors.New("codebook not loaded")
	// ErrCodebookFailed: every copy of the codebook is out of service.
	ErrCodebookFailed = errors.New("codebook out of service")
	// ErrAmbiguousCodebook: workers serve different codebooks under one name, and the request does not say which it wants.
	ErrAmbiguousCodebook = errors.New("ambiguous codebook")
	// ErrCodebookDigest: the codebook is served with other digests than the one asked for.
	ErrCodebookDigest = errors.New("codebook digest differs")
	// ErrNoTrainings: every worker is told to take no trainings.
	ErrNoTrainings = errors.New("no worker takes trainings")
	// ErrTrainingsFull: every worker that has memory for the training runs as many as it may.
	ErrTrainingsFull = errors.New("every worker trains as many as it may")
)

// CodebookRequest is what routing needs of rows to encode or codes to decode.
type CodebookRequest struct {
	// Codebook is required.
	Codebook string
	// Digest is what it must have; empty is any.
	Digest string
	// Exclude are workers that have failed.
	Exclude []string
	// Tie is a random number.
	Tie uint64
}

// alikeBytes is how far apart two workers' bytes under way count as equal: the work of some milliseconds.
const alikeBytes = 256 << 10

// shelf is a copy of a codebook that serves.
type shelf struct {
	worker int32
	digest string
}

// candidate is a worker that could serve a request, and what it has under way.
type candidate struct {
	worker int32
	bytes  int64
}

// shelves are the copies that serve, by name.
func shelves(workers []Worker) map[string][]shelf {
	all := map[string][]shelf{}
	for i := range workers {
		w := &workers[i]
		if !w.Serves() || w.Vectors == nil {
			continue
		}
		for j := range w.Vectors.Codebooks {
			if b := &w.Vectors.Codebooks[j]; b.State == CodebookReady {
				all[b.Name] = append(all[b.Name], shelf{worker: int32(i), digest: b.Digest})
			}
		}
	}
	return all
}

// PickCodebook chooses the worker that should encode or decode: one that serves the codebook and has about the fewest bytes of this
// process under way, of two of those that are drawn the one with fewer trainings, then with fewer calls. Count it with
// Load.Vectors.Begin. The error is a *Refusal.
func PickCodebook(s *Snapshot, r CodebookRequest) (index int, err error) {
	if !s.Known {
		return 0, unknown(s)
	}
	copies := s.shelves[r.Codebook]
	var room [8]candidate // most codebooks have few copies
	able, fewest := room[:0], int64(0)
	first, others := "", false // digest of the first copy, and whether there are others
	for _, c := range copies {
		if first == "" {
			first = c.digest
		}
		others = others || c.digest != first
		w := &s.Workers[c.worker]
		if r.Digest != "" && c.digest != r.Digest || passed(r.Exclude, w.ID) {
			continue
		}
		bytes := w.Load.Vectors.Bytes()
		if len(able) == 0 || bytes < fewest {
			fewest = bytes
		}
		able = append(able, candidate{c.worker, bytes})
	}
	switch {
	case others && r.Digest == "":
		return 0, ambiguousCodebook(&r, "is served", digestsOf(copies))
	case len(able) > 0:
	case len(copies) > 0 && r.Digest != "" && !serves(copies, r.Digest):
		return 0, otherCodebook(&r, digestsOf(copies))
	default:
		return 0, absentCodebook(s, &r)
	}
	able = slices.DeleteFunc(able, func(c candidate) bool { return c.bytes > fewest+alikeBytes })
	one, other := able[r.Tie%uint64(len(able))].worker, able[(r.Tie>>32)%uint64(len(able))].worker
	a, b := &s.Workers[one].Load.Vectors, &s.Workers[other].Load.Vectors
	if less([2]int64{b.Trainings(), b.Calls()}, [2]int64{a.Trainings(), a.Calls()}) {
		one = other
	}
	return int(one), nil
}

func serves(copies []shelf, digest string) bool {
	return slices.ContainsFunc(copies, func(c shelf) bool { return c.digest == digest })
}

func passed(exclude []string, id string) bool { return slices.Contains(exclude, id) }

// digestsOf are the distinct digests of copies, sorted.
func digestsOf(copies []shelf) (all []string) {
	for _, c := range copies {
		all = append(all, c.digest)
	}
	return sorted(all)
}

// sorted are distinct digests in order.
func sorted(digests []string) []string {
	slices.Sort(digests)
	return slices.Compact(digests)
}

// ambiguousCodebook is the refusal of a name that has several digests, and says how.
func ambiguousCodebook(r *CodebookRequest, how string, digests []string) error {
	return refuse(ErrAmbiguousCodebook, fmt.Sprintf("codebook %q %s with the digests %s: set expect_codebook_digest, or keep one of them",
		r.Codebook, how, strings.Join(digests, ", ")), "codebook", r.Codebook, "digests", strings.Join(digests, ","))
}

func otherCodebook(r *CodebookRequest, digests []string) error {
	return refuse(ErrCodebookDigest, fmt.Sprintf("codebook %q has digest %s and the request expects %s: put or load the one that is "+
		"meant, or leave expect_codebook_digest out", r.Codebook, strings.Join(digests, ", "), r.Digest),
		"codebook", r.Codebook, "digests", strings.Join(digests, ","), "expected", r.Digest)
}

// nobodyConnected is the refusal of a fleet without a worker.
func nobodyConnected(s *Snapshot) error {
	return refuse(ErrNoWorker, fmt.Sprintf("none of the %d workers configured can be reached: start one, or check --workers",
		len(s.Workers)), "workers", strconv.Itoa(len(s.Workers)), "connected", "0")
}

// absentCodebook says why no worker serves the codebook.
func absentCodebook(s *Snapshot, r *CodebookRequest) error {
	connected, could, returns := 0, []string(nil), false
	var served, files []string // digests of copies that cannot be reached now, and of files that could be loaded
	var others []string        // those that are not wanted
	var failed, onDisk, unusable bool
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.Connected {
			connected++
		}
		b := w.codebook(r.Codebook)
		switch {
		case b == nil:
		case (b.State == CodebookReady || b.State == CodebookOnDisk) && r.Digest != "" && b.Digest != r.Digest:
			others = append(others, b.Digest)
		case b.State == CodebookReady && !w.Serves():
			could, served = append(could, name(w)), append(served, b.Digest)
			returns = returns || !w.Connected || w.State == Starting
		case !w.Connected:
		case b.State == CodebookFailed:
			failed = true
		case b.State == CodebookUnusable:
			unusable = true
		case b.State == CodebookOnDisk:
			onDisk = true
			if w.Serves() && !passed(r.Exclude, w.ID) {
				files = append(files, b.Digest)
			}
		}
	}
	served, files = sorted(served), sorted(files)
	numbers := []string{"codebook", r.Codebook, "workers", strconv.Itoa(len(s.Workers)), "connected", strconv.Itoa(connected)}
	switch {
	case connected == 0:
		return nobodyConnected(s)
	case len(could) > 0:
		refusal := refuse(ErrNoWorker, fmt.Sprintf("codebook %q is on %s, which takes no requests now: try again, or load it elsewhere",
			r.Codebook, strings.Join(could, ", ")), numbers...)
		// What is loaded is what was served. Who has been told of one worker alone that it is gone may take it when it is back: it
		// asks without leaving it out.
		if len(served) == 1 && slices.Contains(files, served[0]) && !(returns && len(r.Exclude) > 0) {
			refusal.Loadable, refusal.Digest, refusal.Returns = true, served[0], returns
		}
		return refusal
	case len(r.Exclude) > 0:
		return refuse(ErrNoWorker, fmt.Sprintf("no other worker serves codebook %q", r.Codebook), numbers...)
	case len(files) > 1:
		return ambiguousCodebook(r, "is not loaded, and workers have files of it", files)
	case onDisk:
		refusal := refuse(ErrCodebookNotLoaded, fmt.Sprintf("codebook %q is on disk and not loaded: call LoadCodebook first", r.Codebook),
			numbers...)
		refusal.Loadable = len(files) == 1
		return refusal
	case len(others) > 0:
		return otherCodebook(r, sorted(others))
	case failed:
		return refuse(ErrCodebookFailed, fmt.Sprintf("codebook %q is out of service: see ListCodebooks for why, and call LoadCodebook",
			r.Codebook), numbers...)
	case unusable:
		return refuse(ErrCodebookNotLoaded, fmt.Sprintf("codebook %q is on disk and its file cannot be loaded: see ListCodebooks for why",
			r.Codebook), numbers...)
	}
	return refuse(ErrUnknownCodebook, fmt.Sprintf("no worker has a codebook %q: see ListCodebooks for those there are", r.Codebook),
		numbers...)
}
