package vectors

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// codebookRequest is what routing needs of a call that encodes or decodes.
type codebookRequest struct {
	codebook string
	digest   string   // that the codebook must have; empty is any
	exclude  []string // workers that have failed the call
	tie      uint64   // a random number
}

// equalBytes is how far two workers' bytes under way may differ and still count as equal. It is the
// work of a few milliseconds.
const equalBytes = 256 << 10

// pickCodebook chooses the worker that should encode or decode. Among the workers that serve the
// codebook it keeps those with about the fewest bytes of this process under way, draws two of them,
// and returns the one with fewer trainings, then with fewer calls (the power of two choices:
// Mitzenmacher 2001). The caller counts the call with load.begin. The error is a *route.Refusal.
func pickCodebook(x *index, r codebookRequest) (int, error) {
	if !x.known {
		return 0, unknownFleet(x)
	}
	type option struct {
		worker int32
		bytes  int64
	}
	copies := x.copies[r.codebook]
	var room [8]option // most codebooks have few copies
	able, fewest := room[:0], int64(0)
	first, others := "", false // digest of the first copy, and whether there are others
	for _, c := range copies {
		if first == "" {
			first = c.digest
		}
		others = others || c.digest != first
		w := &x.workers[c.worker]
		if r.digest != "" && c.digest != r.digest || slices.Contains(r.exclude, w.ID) {
			continue
		}
		bytes := w.load.bytes.Load()
		if len(able) == 0 || bytes < fewest {
			fewest = bytes
		}
		able = append(able, option{c.worker, bytes})
	}
	switch {
	case others && r.digest == "":
		return 0, ambiguousCodebook(&r, "is served", digestsOf(copies))
	case len(able) > 0:
	case len(copies) > 0 && r.digest != "" && !serves(copies, r.digest):
		return 0, otherCodebook(&r, digestsOf(copies))
	default:
		return 0, absentCodebook(x, &r)
	}
	able = slices.DeleteFunc(able, func(o option) bool { return o.bytes > fewest+equalBytes })
	one, other := able[r.tie%uint64(len(able))].worker, able[(r.tie>>32)%uint64(len(able))].worker
	a, b := x.workers[one].load, x.workers[other].load
	if less([2]int64{b.trainings.running(), b.calls.Load()}, [2]int64{a.trainings.running(), a.calls.Load()}) {
		return int(other), nil
	}
	return int(one), nil
}

func serves(copies []servingCopy, digest string) bool {
	return slices.ContainsFunc(copies, func(c servingCopy) bool { return c.digest == digest })
}

// digestsOf returns the distinct digests of copies in order.
func digestsOf(copies []servingCopy) (digests []string) {
	for _, c := range copies {
		digests = append(digests, c.digest)
	}
	return distinct(digests)
}

// distinct sorts digests and removes duplicates, in place.
func distinct(digests []string) []string {
	slices.Sort(digests)
	return slices.Compact(digests)
}

func less(a, b [2]int64) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

// unknownFleet refuses a call while the scheduler has not heard from its workers.
func unknownFleet(x *index) error {
	return route.Refuse(route.ErrFleetUnknown, "this scheduler has not heard from its workers yet: try again",
		"workers", strconv.Itoa(len(x.workers)))
}

// noneConnected refuses a call of a fleet without a connected worker.
func noneConnected(x *index) error {
	return route.Refuse(route.ErrNoWorker, fmt.Sprintf("none of the %d workers configured can be reached: start one, or check --workers",
		len(x.workers)), "workers", strconv.Itoa(len(x.workers)), "connected", "0")
}

// ambiguousCodebook refuses a name that has several digests; how says where they are.
func ambiguousCodebook(r *codebookRequest, how string, digests []string) error {
	return route.Refuse(errAmbiguousCodebook, fmt.Sprintf("codebook %q %s with the digests %s: set expect_codebook_digest, or keep one of them",
		r.codebook, how, strings.Join(digests, ", ")), "codebook", r.codebook, "digests", strings.Join(digests, ","))
}

// otherCodebook refuses a digest that no worker has under the name.
func otherCodebook(r *codebookRequest, digests []string) error {
	return route.Refuse(errCodebookDigest, fmt.Sprintf("codebook %q has digest %s and the request expects %s: put or load the one that is "+
		"meant, or leave expect_codebook_digest out", r.codebook, strings.Join(digests, ", "), r.digest),
		"codebook", r.codebook, "digests", strings.Join(digests, ","), "expected", r.digest)
}

// absentCodebook returns why no worker serves the codebook, and whether a load would help.
func absentCodebook(x *index, r *codebookRequest) error {
	connected, hosts, returns := 0, []string(nil), false
	var served, files []string // digests of copies that cannot be reached now, and of files that could be loaded
	var others []string        // digests that are not wanted
	var seen [ready + 1]bool   // states of the copies on connected workers
	for i := range x.workers {
		w := &x.workers[i]
		if w.Connected {
			connected++
		}
		b := codebookOn(w.report, r.codebook)
		if b == nil {
			continue
		}
		digest, state := b.GetCodebookDigest(), stateOf(b)
		switch {
		case (state == ready || state == onDisk) && r.digest != "" && digest != r.digest:
			others = append(others, digest)
		case state == ready && !w.Serves():
			hosts, served = append(hosts, nameOf(w)), append(served, digest)
			returns = returns || !w.Connected || w.State == route.Starting
		case w.Connected:
			seen[state] = true
			if state == onDisk && w.Serves() && !slices.Contains(r.exclude, w.ID) {
				files = append(files, digest)
			}
		}
	}
	served, files = distinct(served), distinct(files)
	numbers := []string{"codebook", r.codebook, "workers", strconv.Itoa(len(x.workers)), "connected", strconv.Itoa(connected)}
	switch {
	case connected == 0:
		return noneConnected(x)
	case len(hosts) > 0:
		refusal := route.Refuse(route.ErrNoWorker, fmt.Sprintf("codebook %q is on %s, which takes no requests now: try again, or load it elsewhere",
			r.codebook, strings.Join(hosts, ", ")), numbers...)
		// Only the digest that was served may be loaded instead. A call that excludes a worker
		// which may return does not load: the caller retries without the exclusion, and finds the
		// worker if it is back by then.
		if len(served) == 1 && slices.Contains(files, served[0]) && !(returns && len(r.exclude) > 0) {
			refusal.Loadable, refusal.Digest, refusal.Returns = true, served[0], returns
		}
		return refusal
	case len(r.exclude) > 0:
		return route.Refuse(route.ErrNoWorker, fmt.Sprintf("no other worker serves codebook %q", r.codebook), numbers...)
	case len(files) > 1:
		return ambiguousCodebook(r, "is not loaded, and workers have files of it", files)
	case seen[onDisk]:
		refusal := route.Refuse(errCodebookNotLoaded, fmt.Sprintf("codebook %q is on disk and not loaded: call LoadCodebook first", r.codebook),
			numbers...)
		refusal.Loadable = len(files) == 1
		return refusal
	case len(others) > 0:
		return otherCodebook(r, distinct(others))
	case seen[failed]:
		return route.Refuse(errCodebookFailed, fmt.Sprintf("codebook %q is out of service: see ListCodebooks for why, and call LoadCodebook",
			r.codebook), numbers...)
	case seen[unusable]:
		return route.Refuse(errCodebookNotLoaded, fmt.Sprintf("codebook %q is on disk and its file cannot be loaded: see ListCodebooks for why",
			r.codebook), numbers...)
	}
	return route.Refuse(errUnknownCodebook, fmt.Sprintf("no worker has a codebook %q: see ListCodebooks for those there are", r.codebook),
		numbers...)
}

// nameOf returns how a message refers to a worker.
func nameOf(w *worker) string {
	if w.ID != "" {
		return w.ID
	}
	return w.Address
}

// trainingRequest is what routing needs of a training.
type trainingRequest struct {
	rows    uint64   // bytes of the rows that are trained on, a lower bound
	rest    uint64   // further bytes that the device must hold, a lower bound
	exclude []string // workers that have refused the training
	tie     uint64   // a random number
}

// fit is how a training fits a worker, the best first.
type fit uint8

const (
	resident fit = iota // device memory holds its rows
	streamed            // host memory does
	unfit
)

// fit decides by the last report; only the worker knows exactly.
func (w *worker) fit(r *trainingRequest) fit {
	free := w.freeDevice()
	switch {
	case r.rest > free:
		return unfit
	case r.rows <= free-r.rest:
		return resident
	case r.rows <= w.vectors().GetFreeSpoolBytes():
		return streamed
	}
	return unfit
}

// pickTraining chooses the worker that should run a training: one that accepts trainings and has
// memory for this one, with the fewest trainings, then one whose device holds the rows, then the
// one of two drawn with more free device memory. If none has the memory, it returns one that has a
// free slot, because that worker knows best why it cannot. The caller counts the training with
// trainings.begin. The error is a *route.Refusal.
func pickTraining(x *index, r trainingRequest) (int, error) {
	if !x.known {
		return 0, unknownFleet(x)
	}
	var able []int
	best := [2]int64{}
	connected, trainers, roomy := 0, 0, 0 // workers that are connected, that accept trainings, that have memory for this one
	for i := range x.workers {
		w := &x.workers[i]
		if w.Connected {
			connected++
		}
		if !w.Serves() || w.maxTrainings() == 0 {
			continue
		}
		trainers++
		if slices.Contains(r.exclude, w.ID) {
			continue
		}
		f := w.fit(&r)
		if f != unfit {
			roomy++
		}
		busy := w.load.trainings.running()
		if busy >= w.maxTrainings() {
			continue
		}
		// Workers with memory come first, then those with fewer trainings.
		order := [2]int64{int64(f / unfit), busy*int64(unfit) + int64(f)}
		switch {
		case len(able) == 0 || less(order, best):
			able, best = append(able[:0], i), order
		case order == best:
			able = append(able, i)
		}
	}
	switch {
	case connected == 0:
		return 0, noneConnected(x)
	case trainers == 0:
		return 0, route.Refuse(errNoTrainings, fmt.Sprintf("none of the %d workers that are reached takes trainings now: start one that does, "+
			"with --max-trainings", connected), "connected", strconv.Itoa(connected))
	case len(able) == 0 && roomy == 0 && len(r.exclude) > 0:
		return 0, route.Refuse(route.ErrNoWorker, "no other worker takes the training")
	case len(able) == 0 || best[0] > 0 && roomy > 0:
		return 0, route.Refuse(errTrainingsFull, fmt.Sprintf("each worker that has memory for the training runs its maximum of trainings: "+
			"try again when one has ended; %d workers accept trainings", trainers), "workers", strconv.Itoa(trainers))
	}
	first, second := able[r.tie%uint64(len(able))], able[(r.tie>>32)%uint64(len(able))]
	if x.workers[second].freeDevice() > x.workers[first].freeDevice() {
		return second, nil
	}
	return first, nil
}
