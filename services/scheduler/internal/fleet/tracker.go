package fleet

import (
	"fmt"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// resyncMessages is how many messages may come between a gap and the full report that was asked for then: what was on its way,
// and some seconds of heartbeats of a worker that does not answer.
const resyncMessages = 16

// tracker is what a worker has said at one address, and what follows from it. It is pure: the messages of one stream after another
// go in, what is to be done comes out. It has no clock: all that it decides by are the worker's own counters and ages, and how
// many messages came, so that it does not matter what clocks say.
type tracker struct {
	// report is the last one, nil before the first. Reports are never changed once they are made.
	report *pb.WorkerReport
	// progress is newer than the report's; nil if that is the newest.
	progress *pb.StepProgress
	prefixes prefixes
	// index is of all workers' prefixes; nil: none is kept.
	index *route.Indexes
	// current is whether the report is of the stream that is open, with nothing missed since.
	current  bool
	sequence uint64 // of the stream's last message
	missed   int    // messages since the gap; 0: there is none
	steps    stall
	digests  digests
}

// effect is what a message asks for.
type effect struct {
	// changed: somebody decides otherwise by what is known now, and should at once.
	changed bool
	// counts: numbers have changed that somebody decides by and need not have at once.
	counts bool
	// resync: a full report is to be asked for.
	resync bool
	// end is why the stream is of no use any more; nil while it is.
	end error
	// lose is why no request on this run of the worker is in good hands any more; nil while they are. The stream ends too.
	lose error
}

// open begins a stream; close ends it. What the worker was stays known.
func (t *tracker) open() { t.current, t.sequence, t.missed = false, 0, 0 }

func (t *tracker) close() {
	t.current = false
	t.forget()
}

// forget voids what is known of cached prefixes: their worker tells all of them behind a full report.
func (t *tracker) forget() {
	t.prefixes.drop()
	t.prefixes = nil
}

// offered is whether requests may go there as far as this scheduler judges.
func (t *tracker) offered() bool { return t.current && t.steps.hangs == nil && t.digests.lie == nil }

// problem is why not; nil where only a stream is missing.
func (t *tracker) problem() error {
	switch {
	case t.digests.lie != nil:
		return t.digests.lie
	case t.steps.hangs != nil:
		return t.steps.hangs
	case t.missed > 0:
		return fmt.Errorf("%w: a full report is awaited", ErrGap)
	}
	return nil
}

// take applies a message.
func (t *tracker) take(in *pb.HealthResponse) effect {
	t.sequence++
	if in.GetSequence() != t.sequence {
		last := t.sequence - 1
		t.sequence = in.GetSequence()
		if in.GetFull() == nil { // which needs nothing that came before
			return t.miss(fmt.Errorf("%w: number %d came after %d", ErrGap, in.GetSequence(), last))
		}
	}
	if in.GetFull() == nil && !t.current {
		return t.miss(fmt.Errorf("%w: %s came before the full report", ErrGap, kind(in)))
	}
	var did effect
	switch event := in.GetEvent().(type) {
	case *pb.HealthResponse_Full:
		did = t.replace(event.Full)
	case *pb.HealthResponse_Delta:
		before := t.report
		t.report = applied(t.report, event.Delta)
		did.changed = urgent(before, event.Delta)
		did.counts = !did.changed && !event.Delta.GetReadingsOnly()
		if event.Delta.GetModelsChanged() {
			t.prefixes = t.prefixes.listed(t.report, t.index)
			t.digests.reported(before.GetModels(), t.report.GetModels())
		}
		if p := event.Delta.GetProgress(); p != nil {
			t.progress = nil
			t.judge(p, &did)
		}
	case *pb.HealthResponse_Heartbeat:
		if p := event.Heartbeat.GetProgress(); p != nil {
			t.progress = p
			t.judge(p, &did)
		}
	case *pb.HealthResponse_PrefixKeys: // kept beside the report
		t.prefixes, did.changed = t.prefixes.told(event.PrefixKeys, t.report, t.index)
	default:
		did.end = fmt.Errorf("%w: a message without a known event", ErrGap)
	}
	if t.digests.judge(t.report) && did.lose == nil {
		did.changed, did.lose = true, t.digests.lie
	}
	return did
}

// replace begins with a full report, from nothing or behind a gap.
func (t *tracker) replace(full *pb.WorkerReport) (did effect) {
	if full.GetWorkerId() == "" || full.GetIncarnation() == "" {
		return effect{end: fmt.Errorf("%w: full report without worker_id or incarnation", ErrGap)}
	}
	same := t.report.GetWorkerId() == full.GetWorkerId() && t.report.GetIncarnation() == full.GetIncarnation()
	if (t.current || t.missed > 0) && t.report != nil && !same {
		return effect{end: fmt.Errorf("%w: worker %s of incarnation %s became %s of %s on one stream", ErrGap,
			t.report.GetWorkerId(), t.report.GetIncarnation(), full.GetWorkerId(), full.GetIncarnation())}
	}
	var before []*pb.ModelStatus
	switch {
	case !same: // another process
		t.steps, t.digests = stall{}, digests{}
	case t.current:
		before = t.report.GetModels() // else it may have loaded others meanwhile
	}
	t.report, t.progress, t.current, t.missed = full, nil, true, 0
	t.forget()
	t.prefixes = prefixes(nil).listed(full, t.index) // every key is told anew behind it
	t.digests.reported(before, full.GetModels())
	did.changed = true
	t.judge(full.GetProgress(), &did)
	return did
}

// miss takes a message that cannot be understood without those before it.
func (t *tracker) miss(why error) effect {
	t.missed++
	switch {
	case t.missed > resyncMessages:
		return effect{end: why}
	case t.missed > 1:
		return effect{}
	}
	t.current = false
	t.forget()
	return effect{changed: true, resync: true}
}

// judge judges how steps go.
func (t *tracker) judge(p *pb.StepProgress, did *effect) {
	changed, fresh := t.steps.take(p)
	did.changed = did.changed || changed
	if fresh {
		did.lose = t.steps.hangs
	}
}

// served takes what an answer said that it is of. The verdict comes with a later message.
func (t *tracker) served(model, digest string) { t.digests.served(t.report, model, digest) }

// newest is the last report with the progress that came since.
func (t *tracker) newest() *pb.WorkerReport {
	if t.progress != nil {
		t.report, t.progress = applied(t.report, &pb.WorkerDelta{Progress: t.progress}), nil
	}
	return t.report
}

// stepBound is what the worker says that one of its steps may take; 0 while it has not.
func (t *tracker) stepBound() time.Duration {
	if t.progress != nil {
		return t.progress.GetStepBound().AsDuration()
	}
	return t.report.GetProgress().GetStepBound().AsDuration()
}

// kind names a message.
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
