package fleet

import (
	"sync/atomic"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// told is the load of one run of a worker. Of the members that follow that run, under several addresses, one tells of it: what is told
// twice would stand for two intervals between reports.
type told struct {
	route.Load
	teller atomic.Pointer[member]
}

// by is whether a member tells of it: whoever does so first, until it leaves.
func (t *told) by(m *member) bool { return t.teller.CompareAndSwap(nil, m) || t.teller.Load() == m }

// leave ends that.
func (t *told) leave(m *member) {
	if t != nil {
		t.teller.CompareAndSwap(m, nil)
	}
}

// observe tells a worker's load what its newest report shows of each model: what others have there too.
func observe(load *route.Load, report *pb.WorkerReport) {
	for _, m := range report.GetModels() {
		of, tells := loadOfModel(report, m.GetName())
		is := route.Report{
			Running: int64(of.GetRunning()), Waiting: int64(of.GetWaiting()), Prefill: int64(of.GetWaitingPrefillTokens()),
			Stalled: int64(of.GetStalled()),
		}
		if !tells { // sums of all models, of which our own in the others are known
			for _, other := range report.GetModels() {
				if other.GetName() != m.GetName() {
					is.Running -= load.Of(other.GetName()).Sequences()
				}
			}
			is.Running = max(is.Running, 0)
		}
		is.Stalled = min(is.Stalled, is.Running+is.Waiting)
		load.Of(m.GetName()).Reported(is)
	}
	load.Vectors.Reported(int64(report.GetVectors().GetTrainings()))
}

// loadOfModel is what a report tells of one model. A worker that does not tell models apart, as those of older releases, is taken
// to do all that it does with each of them; tells is then false.
func loadOfModel(report *pb.WorkerReport, name string) (of *pb.ModelLoad, tells bool) {
	load := report.GetLoad()
	for _, m := range load.GetModels() {
		if m.GetName() == name {
			return m, true
		}
	}
	if len(load.GetModels()) > 0 { // it has just come, or is about to go
		return nil, true
	}
	return &pb.ModelLoad{
		Name: name, Running: load.GetRunning(), Waiting: load.GetWaiting(), WaitingPrefillTokens: load.GetWaitingPrefillTokens(),
		FreeBlocks: load.GetFreeBlocks(), Stalled: load.GetStalled(), TokensPerSecond: load.GetTokensPerSecond(),
		PrefillTokensPerSecond: load.GetPrefillTokensPerSecond(),
	}, false
}

// cacheTokens is how many tokens a model's KV cache holds; 0 where the report does not tell how much of it is free.
func cacheTokens(m *pb.ModelStatus, tells bool) int64 {
	if !tells {
		return 0
	}
	return int64(m.GetLoaded().GetKvBlocks()) * int64(m.GetLoaded().GetBlockSize())
}
