package fleet

import (
	"maps"
	"sync/atomic"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// sharedLoad is the load of one run of a worker, shared by the members that follow that run at
// several addresses. Only one of them feeds it with reports: a report that is counted twice would
// end two of the intervals over which route.Count distinguishes own work from that of others.
type sharedLoad struct {
	route.Load
	reporter atomic.Pointer[member]
}

// claim reports whether a member feeds the load: the first one that claims it, until it unclaims
// it.
func (l *sharedLoad) claim(m *member) bool {
	return l.reporter.CompareAndSwap(nil, m) || l.reporter.Load() == m
}

// unclaim lets another member feed the load.
func (l *sharedLoad) unclaim(m *member) {
	if l != nil {
		l.reporter.CompareAndSwap(m, nil)
	}
}

// assignLoad gives a member the load of a run of a worker, which is the same over all its
// connections. The member has it before forgetLoadsLocked can drop it.
func (f *Fleet) assignLoad(m *member, id, incarnation string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run := workerRun{id, incarnation}
	l := f.mu.loads[run]
	if l == nil {
		l = &sharedLoad{}
		f.forgetLoadsLocked()
		f.mu.loads[run] = l
	}
	m.mu.Lock()
	if m.mu.load != l {
		m.mu.load.unclaim(m)
		m.mu.load, m.mu.changed = l, true
	}
	m.mu.Unlock()
}

// forgetLoadsLocked drops the loads that are idle and belong to no member: those of workers that
// are gone.
func (f *Fleet) forgetLoadsLocked() {
	used := map[*sharedLoad]bool{}
	for _, m := range f.mu.members {
		m.mu.Lock()
		used[m.mu.load] = true
		m.mu.Unlock()
	}
	maps.DeleteFunc(f.mu.loads, func(_ workerRun, l *sharedLoad) bool { return l.Idle() && !used[l] })
}

// setReports feeds a worker's load with its newest report of each model, which includes the
// sequences of other schedulers.
func setReports(load *route.Load, report *pb.WorkerReport) {
	for _, m := range report.GetModels() {
		model, perModel := loadOfModel(report, m.GetName())
		r := route.Report{
			Running: int64(model.GetRunning()), Waiting: int64(model.GetWaiting()), Prefill: int64(model.GetWaitingPrefillTokens()),
			Stalled: int64(model.GetStalled()),
		}
		if !perModel { // a sum over all models, from which own sequences of the others can be subtracted
			for _, other := range report.GetModels() {
				if other.GetName() != m.GetName() {
					r.Running -= load.Of(other.GetName()).Sequences()
				}
			}
			r.Running = max(r.Running, 0)
		}
		r.Stalled = min(r.Stalled, r.Running+r.Waiting)
		load.Of(m.GetName()).SetReport(r)
	}
}

// loadOfModel returns the reported load of one model. Workers of older releases report only a sum
// over all models; then each model is assumed to have all of it, and perModel is false.
func loadOfModel(report *pb.WorkerReport, name string) (model *pb.ModelLoad, perModel bool) {
	load := report.GetLoad()
	for _, m := range load.GetModels() {
		if m.GetName() == name {
			return m, true
		}
	}
	if len(load.GetModels()) > 0 { // the model was just loaded, or is about to be unloaded
		return nil, true
	}
	return &pb.ModelLoad{
		Name: name, Running: load.GetRunning(), Waiting: load.GetWaiting(), WaitingPrefillTokens: load.GetWaitingPrefillTokens(),
		FreeBlocks: load.GetFreeBlocks(), Stalled: load.GetStalled(), TokensPerSecond: load.GetTokensPerSecond(),
		PrefillTokensPerSecond: load.GetPrefillTokensPerSecond(),
	}, false
}

// cacheTokens returns how many tokens a model's KV cache holds; 0 if the report does not say how
// much of it is free.
func cacheTokens(m *pb.ModelStatus, perModel bool) int64 {
	if !perModel {
		return 0
	}
	return int64(m.GetLoaded().GetKvBlocks()) * int64(m.GetLoaded().GetBlockSize())
}
