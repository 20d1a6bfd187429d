package fleet

import (
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// resyncMessages is how many messages may arrive between a gap and the full report that was
// requested for it: those that were on their way, and some seconds of heartbeats of a worker that
// does not answer.
const resyncMessages = 16

// tracker is the state of a worker at one address, by its messages. It is pure: the messages of one
// stream after another go in, and effects come out. It has no clock. It decides by the worker's own
// counters and ages and by the number of messages, so that skewed clocks do not matter.
type tracker struct {
	// report is the last one; nil before the first. A report is never changed after it was made.
	report *pb.WorkerReport
	// progress is newer than the report's; nil if the report's is the newest.
	progress *pb.StepProgress
	prefixes prefixes
	// index is that of all workers' prefixes; nil: none is kept.
	index *route.Indexes
	// urgent is Config.Urgent; it may be nil.
	urgent func(before *pb.WorkerReport, d *pb.WorkerDelta) bool
	// current means that the report is of the open stream, and that no message was missed since.
	current  bool
	sequence uint64 // of the stream's last message
	missed   int    // messages since the gap; 0: no gap
	steps    hangDetector
	digests  digests
}

// effect is what must follow a message.
type effect struct {
	// changed: something changed that decisions depend on, so that a snapshot must follow at once.
	changed bool
	// numbers: only numbers changed, and a snapshot may wait.
	numbers bool
	// resync: a full report must be requested.
	resync bool
	// end is why the stream must end; nil: it goes on.
	end error
	// lose is why all requests on this run of the worker must be given up, and the stream with
	// them; nil: they go on.
	lose error
}

// open begins a stream. The last report stays.
func (t *tracker) open() { t.current, t.sequence, t.missed = false, 0, 0 }

// close ends a stream. The last report stays.
func (t *tracker) close() {
	t.current = false
	t.dropPrefixes()
}

// dropPrefixes drops the cached prefixes. The worker reports all of them again after a full report.
func (t *tracker) dropPrefixes() {
	t.prefixes.drop()
	t.prefixes = nil
}

// usable reports whether requests may go to the worker, as far as its messages show.
func (t *tracker) usable() bool {
	return t.current && t.steps.hang == nil && t.digests.contradiction == nil
}

// problem returns why the worker is not usable; nil if it only has no stream.
func (t *tracker) problem() error {
	switch {
	case t.digests.contradiction != nil:
		return t.digests.contradiction
	case t.steps.hang != nil:
		return t.steps.hang
	case t.missed > 0:
		return fmt.Errorf("%w: a full report is awaited", ErrGap)
	}
	return nil
}

// apply applies a message.
func (t *tracker) apply(in *pb.HealthResponse) effect {
	t.sequence++
	if in.GetSequence() != t.sequence {
		last := t.sequence - 1
		t.sequence = in.GetSequence()
		if in.GetFull() == nil { // a full report needs no earlier message
			return t.miss(fmt.Errorf("%w: number %d came after %d", ErrGap, in.GetSequence(), last))
		}
	}
	if in.GetFull() == nil && !t.current {
		return t.miss(fmt.Errorf("%w: %s came before the full report", ErrGap, kind(in)))
	}
	var e effect
	switch event := in.GetEvent().(type) {
	case *pb.HealthResponse_Full:
		e = t.replace(event.Full)
	case *pb.HealthResponse_Delta:
		before := t.report
		t.report = applyDelta(t.report, event.Delta)
		e.changed = urgent(before, event.Delta) || t.urgent != nil && t.urgent(before, event.Delta)
		e.numbers = !e.changed && !event.Delta.GetReadingsOnly()
		if event.Delta.GetModelsChanged() {
			t.prefixes = t.prefixes.retain(t.report, t.index)
			t.digests.setModels(before.GetModels(), t.report.GetModels())
		}
		if p := event.Delta.GetProgress(); p != nil {
			t.progress = nil
			t.checkStep(p, &e)
		}
	case *pb.HealthResponse_Heartbeat:
		if p := event.Heartbeat.GetProgress(); p != nil {
			t.progress = p
			t.checkStep(p, &e)
		}
	case *pb.HealthResponse_PrefixKeys: // not part of the report
		t.prefixes, e.changed = t.prefixes.apply(event.PrefixKeys, t.report, t.index)
	default:
		e.end = fmt.Errorf("%w: a message without a known event", ErrGap)
	}
	if t.digests.check(t.report) && e.lose == nil {
		e.changed, e.lose = true, t.digests.contradiction
	}
	return e
}

// replace replaces the report by a full one, on a new stream or after a gap.
func (t *tracker) replace(full *pb.WorkerReport) (e effect) {
	if full.GetWorkerId() == "" || full.GetIncarnation() == "" {
		return effect{end: fmt.Errorf("%w: full report without worker_id or incarnation", ErrGap)}
	}
	same := t.report.GetWorkerId() == full.GetWorkerId() && t.report.GetIncarnation() == full.GetIncarnation()
	if (t.current || t.missed > 0) && t.report != nil && !same {
		return effect{end: fmt.Errorf("%w: worker %s of incarnation %s became %s of %s on one stream", ErrGap,
			t.report.GetWorkerId(), t.report.GetIncarnation(), full.GetWorkerId(), full.GetIncarnation())}
	}
	var before []*pb.ModelStatus // nil if models may have been loaded in between
	switch {
	case !same: // another process
		t.steps, t.digests = hangDetector{}, digests{}
	case t.current:
		before = t.report.GetModels()
	}
	t.report, t.progress, t.current, t.missed = full, nil, true, 0
	t.dropPrefixes()
	t.prefixes = prefixes(nil).retain(full, t.index) // the worker reports every key again after it
	t.digests.setModels(before, full.GetModels())
	e.changed = true
	t.checkStep(full.GetProgress(), &e)
	return e
}

// miss handles a message that depends on one that was missed.
func (t *tracker) miss(why error) effect {
	t.missed++
	switch {
	case t.missed > resyncMessages:
		return effect{end: why}
	case t.missed > 1:
		return effect{}
	}
	t.current = false
	t.dropPrefixes()
	return effect{changed: true, resync: true}
}

// checkStep checks whether a step hangs.
func (t *tracker) checkStep(p *pb.StepProgress, e *effect) {
	changed, hangs := t.steps.observe(p)
	e.changed = e.changed || changed
	if hangs {
		e.lose = t.steps.hang
	}
}

// observeDigest records the digest that an answer states. A later message decides on it.
func (t *tracker) observeDigest(model, digest string) { t.digests.observe(t.report, model, digest) }

// newest returns the last report with the progress that arrived since.
func (t *tracker) newest() *pb.WorkerReport {
	if t.progress != nil {
		t.report, t.progress = applyDelta(t.report, &pb.WorkerDelta{Progress: t.progress}), nil
	}
	return t.report
}

// stepBound returns the bound that the worker declares for its steps; 0: none yet.
func (t *tracker) stepBound() time.Duration {
	if t.progress != nil {
		return t.progress.GetStepBound().AsDuration()
	}
	return t.report.GetProgress().GetStepBound().AsDuration()
}

// kind names a message in an error.
func kind(in *pb.HealthResponse) string {
	switch in.GetEvent().(type) {
	case *pb.HealthResponse_Delta:
		return "a delta"
	case *pb.HealthResponse_Heartbeat:
		return "a heartbeat"
	case *pb.HealthResponse_PrefixKeys:
		return "cached prefixes"
	}
	return "a message without a known event"
}

// applyDelta returns a new report: the last one with the fields that the delta sets.
func applyDelta(last *pb.WorkerReport, d *pb.WorkerDelta) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: last.GetWorkerId(), Incarnation: last.GetIncarnation(), ClassId: last.GetClassId(), Version: last.GetVersion(),
		State: last.GetState(), Checks: last.GetChecks(), Device: last.GetDevice(), Load: last.GetLoad(),
		Progress: last.GetProgress(), Models: last.GetModels(), Files: last.GetFiles(),
		Vectors: last.GetVectors(),
	}
	if d.GetState() != pb.WorkerState_WORKER_STATE_UNSPECIFIED {
		r.State = d.GetState()
	}
	if d.GetChecksChanged() {
		r.Checks = d.GetChecks()
	}
	if d.GetDevice() != nil {
		r.Device = d.GetDevice()
	}
	if d.GetLoad() != nil {
		r.Load = d.GetLoad()
	}
	if d.GetProgress() != nil {
		r.Progress = d.GetProgress()
	}
	if d.GetModelsChanged() {
		r.Models = d.GetModels()
	}
	if d.GetFilesChanged() {
		r.Files = d.GetFiles()
	}
	if d.GetVectors() != nil {
		r.Vectors = d.GetVectors()
	}
	return r
}

// urgent reports whether a delta changes more than numbers. Lists contain ages, which always change
// and often are the only change.
func urgent(before *pb.WorkerReport, d *pb.WorkerDelta) bool {
	switch {
	case d.GetReadingsOnly():
		return false
	case d.GetState() != pb.WorkerState_WORKER_STATE_UNSPECIFIED, d.GetFilesChanged():
		return true
	case d.GetModelsChanged() && !slices.EqualFunc(before.GetModels(), d.GetModels(), sameModel):
		return true
	}
	return d.GetChecksChanged() && !slices.EqualFunc(before.GetChecks(), d.GetChecks(), sameCheck)
}

// sameModel reports whether two reports of a model allow the same use of it.
func sameModel(a, b *pb.ModelStatus) bool {
	return a.GetName() == b.GetName() && a.GetState() == b.GetState() && a.GetModelDigest() == b.GetModelDigest() &&
		a.GetClassId() == b.GetClassId() && a.GetContextLength() == b.GetContextLength() && a.GetProblem() == b.GetProblem() &&
		a.GetLoaded().GetMaxSequences() == b.GetLoaded().GetMaxSequences()
}

func sameCheck(a, b *pb.HealthCheck) bool {
	return a.GetName() == b.GetName() && a.GetOk() == b.GetOk()
}

// hangDetector compares the age of a worker's running step with the bound that the worker declares.
// A long prefill without output is many steps, each within the bound.
//
// One message beyond the bound is not enough: its process may have been stopped for a while, and
// continue. A step hangs if it is beyond its bound in two messages in a row, and older in the
// second.
type hangDetector struct {
	beyond time.Duration // age of the running step in the last message, if that was beyond its bound; else 0
	hang   error         // nil: no step hangs
}

// observe checks a message. changed reports that hang is set or cleared, hangs that it is newly
// set.
func (h *hangDetector) observe(p *pb.StepProgress) (changed, hangs bool) {
	age, bound := p.GetRunningStepAge().AsDuration(), p.GetStepBound().AsDuration()
	last := h.beyond
	if bound <= 0 || age <= bound {
		changed = h.hang != nil
		*h = hangDetector{}
		return changed, false
	}
	h.beyond = age
	if last == 0 || age <= last || h.hang != nil {
		return false, false
	}
	h.hang = fmt.Errorf("%w: for %v, and its bound is %v: restart it unless it ends by itself", ErrStalled,
		age.Round(time.Millisecond), bound.Round(time.Millisecond))
	return true, true
}
