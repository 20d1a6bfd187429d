package vectors

import (
	"slices"
	"sync"
	"sync/atomic"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// index is one snapshot of the fleet, prepared for routing calls to codebooks. It is immutable,
// except for the loads that it points to.
type index struct {
	snapshot *fleet.Snapshot
	known    bool
	workers  []worker                 // with the indices of snapshot.Members
	copies   map[string][]servingCopy // by the codebook's name
}

// worker is one member of the fleet.
type worker struct {
	*route.Worker
	report *pb.WorkerReport
	load   *load // nil if the worker has no vectors
}

// servingCopy is a copy of a codebook that serves on a worker that takes requests.
type servingCopy struct {
	worker int32
	digest string
}

// vectors returns the part of the report that is about codebooks and trainings, or nil.
func (w *worker) vectors() *pb.VectorStatus { return w.report.GetVectors() }

// freeDevice returns how many bytes of device memory a training may use.
func (w *worker) freeDevice() uint64 { return w.report.GetDevice().GetBytesFree() }

// maxTrainings returns how many trainings run there at once; 0 if the worker accepts none.
func (w *worker) maxTrainings() int64 { return int64(w.vectors().GetMaxTrainings()) }

// codebookState is what a worker can do with a codebook.
type codebookState uint8

const (
	unusable codebookState = iota // a file that cannot be loaded, or a state that this release does not know
	onDisk                        // a file that could be loaded
	failed                        // loaded, and out of service
	ready                         // serving
)

// stateOf classifies a reported codebook.
func stateOf(b *pb.CodebookInfo) codebookState {
	switch {
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY:
		return ready
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_FAILED:
		return failed
	case b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK && b.GetProblem() == "":
		return onDisk
	}
	return unusable
}

// codebookOn returns a member's codebook of that name, in any state, or nil.
func codebookOn(report *pb.WorkerReport, name string) *pb.CodebookInfo {
	for _, b := range report.GetVectors().GetCodebooks() {
		if b.GetName() == name {
			return b
		}
	}
	return nil
}

// Urgent reports whether a delta changes which codebooks can be used or which trainings can begin.
// It is for fleet.Config. Ages and free bytes change with every report and are not urgent.
func Urgent(before *pb.WorkerReport, d *pb.WorkerDelta) bool {
	a, b := before.GetVectors(), d.GetVectors()
	if b == nil || d.GetReadingsOnly() {
		return false
	}
	return a.GetTrainings() != b.GetTrainings() || a.GetMaxTrainings() != b.GetMaxTrainings() ||
		!slices.EqualFunc(a.GetCodebooks(), b.GetCodebooks(), func(a, b *pb.CodebookInfo) bool {
			return a.GetName() == b.GetName() && a.GetState() == b.GetState() && a.GetCodebookDigest() == b.GetCodebookDigest() &&
				a.GetProblem() == b.GetProblem()
		})
}

// indexes builds the index of each snapshot once, and keeps the load of each run of a worker
// between snapshots. Safe for concurrent use; the zero value is empty.
type indexes struct {
	latest atomic.Pointer[index]

	mu    sync.Mutex
	loads map[run]*load // guarded by mu
	round uint64        // guarded by mu; number of indexes built
}

// run is one run of a worker.
type run struct{ id, incarnation string }

func runOf(m *fleet.Member) run { return run{m.Report.GetWorkerId(), m.Report.GetIncarnation()} }

// of returns the index of the newest snapshot.
func (x *indexes) of(f Fleet) *index {
	if latest := x.latest.Load(); latest != nil && latest.snapshot == f.Snapshot() {
		return latest
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s := f.Snapshot() // again, so that an older one never replaces a newer one
	latest := x.latest.Load()
	if latest == nil || latest.snapshot != s {
		latest = x.buildLocked(s)
		x.latest.Store(latest)
	}
	return latest
}

// buildLocked indexes a snapshot. It passes each new report to the load of its worker, and drops
// the idle loads of runs that have left the fleet.
func (x *indexes) buildLocked(s *fleet.Snapshot) *index {
	x.round++
	out := &index{snapshot: s, known: s.Route.Known, workers: make([]worker, len(s.Members)), copies: map[string][]servingCopy{}}
	for i := range s.Members {
		m, w := &s.Members[i], &out.workers[i]
		w.Worker, w.report = &s.Route.Workers[i], m.Report
		if w.vectors() == nil {
			continue
		}
		w.load = x.loadLocked(m)
		if !w.Serves() {
			continue
		}
		for _, b := range w.vectors().GetCodebooks() {
			if stateOf(b) == ready {
				out.copies[b.GetName()] = append(out.copies[b.GetName()], servingCopy{int32(i), b.GetCodebookDigest()})
			}
		}
	}
	for of, l := range x.loads {
		if l.round != x.round && l.idle() {
			delete(x.loads, of)
		}
	}
	return out
}

// loadLocked returns the load of a member's run, up to date with its report. Several members may
// follow one run under several addresses; at most one of them is connected in a snapshot.
func (x *indexes) loadLocked(m *fleet.Member) *load {
	l := x.loads[runOf(m)]
	if l == nil {
		if x.loads == nil {
			x.loads = map[run]*load{}
		}
		l = &load{}
		x.loads[runOf(m)] = l
	}
	l.round = x.round
	if seen := (reportParts{m.Report.GetLoad(), m.Report.GetVectors()}); m.Connected && seen != l.seen {
		l.seen = seen
		l.trainings.reported(int64(m.Report.GetVectors().GetTrainings()))
	}
	return l
}

// underWay returns how many of this process's calls run on a member.
func (x *indexes) underWay(m *fleet.Member) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.loads[runOf(m)]; l != nil {
		return l.calls.Load() + l.trainings.own()
	}
	return 0
}

// load counts the calls on one run of a worker. Token streams are counted separately, in
// route.Load. Safe for concurrent use; the zero value is idle.
type load struct {
	calls, bytes atomic.Int64 // this process's calls that encode or decode, and their bytes
	trainings    trainings

	round uint64      // of the last index that has the run; guarded by indexes.mu, as seen
	seen  reportParts // parts of the last report that was counted
}

// reportParts identifies a report: a worker that reports its load or its codebooks again sends new
// messages.
type reportParts struct {
	load    *pb.LoadStatus
	vectors *pb.VectorStatus
}

// begin counts a call of that many bytes; end removes it.
func (l *load) begin(bytes int64) {
	l.calls.Add(1)
	l.bytes.Add(bytes)
}

func (l *load) end(bytes int64) {
	l.bytes.Add(-bytes)
	l.calls.Add(-1)
}

// idle reports whether nothing of this process runs there.
func (l *load) idle() bool { return l.calls.Load() == 0 && l.trainings.own() == 0 }

// trainings counts the trainings on one worker: this process's own as of now, and those of other
// schedulers as of the worker's last report. Safe for concurrent use.
type trainings struct {
	mu    sync.Mutex // held while count changes
	count route.Count
}

// begin counts a training unless limit run there already.
func (t *trainings) begin(limit int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count.Sum() >= limit {
		return false
	}
	t.count.Add(1)
	return true
}

// end removes a training that begin has counted.
func (t *trainings) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Add(-1)
}

// reported stores the total that a worker reports.
func (t *trainings) reported(total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.SetTotal(total)
}

// own returns how many of them this process started.
func (t *trainings) own() int64 { return t.count.Own() }

// running returns the number of all of them.
func (t *trainings) running() int64 { return t.count.Sum() }
