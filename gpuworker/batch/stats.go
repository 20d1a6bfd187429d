package batch

import (
	"sync/atomic"
	"time"
)

// Stats is what a loop has done and is doing.
type Stats struct {
	Steps                uint64
	LastStepAge          time.Duration // since the end of the last step; 0 before the first
	RunningStepAge       time.Duration // of the step on the device; 0 when idle
	StepBound            time.Duration // beyond it the running step counts as hung
	Running, Waiting     int           // sequences
	WaitingPrefillTokens int64         // prompt tokens not computed yet
	Paused               int           // of the running, those whose readers must catch up first
	Stalled              int           // that hold no place against others: running ones paused for YieldAfter, and of the waiting those whose readers must catch up
	HeldBack             int           // of the running, those whose prompts wait so that another tenant keeps its pace
	HeldBackTime         time.Duration // that prompts have waited so, added up over them
	QueueAge             time.Duration // of the sequence that waits for its first place for longest; 0: none does
	FreeBlocks           int           // of the device, those that hold prefixes nobody uses counted
	CachedBlocks         int           // of the free ones, those that hold such prefixes
	TotalBlocks          int
	FreeHostBlocks       int // of host memory
	TotalHostBlocks      int
	GeneratedTokens      uint64
	PrefilledTokens      uint64
	Cancelled            uint64 // sequences
	Preempted            uint64 // times a sequence lost its place
	Swapped              uint64 // of those, the times its blocks went to host memory
	PrefixLookups        uint64 // sequences that looked for their prefix when they got their first place
	PrefixHits           uint64 // of those, the ones that found a block at least
	CachedTokens         uint64 // prompt tokens that came from the prefix cache
	RefusedSteps         uint64 // steps that the engine refused; they ran in smaller ones, or ended a sequence each
	StepsAfterCancel     uint64 // steps a sequence was in beyond those submitted or planned when it was cancelled
}

type counters struct {
	steps, generated, prefilled, cancelled, preempted, swapped, afterCancel, refused atomic.Uint64
	lookups, hits, cachedTokens                                                      atomic.Uint64
	running, waiting, waitingPrefill, paused, stalled, heldBack                      atomic.Int64
	heldBackTime                                                                     atomic.Int64 // ns
	stepStart, stepEnd, oldest                                                       atomic.Int64 // ns since the loop was made; 0 = none
	longest                                                                          atomic.Int64 // ns, of the steps so far, decaying
}

// minStepBound is the least time after which a step counts as hung: well above any step the loop plans, and low
// enough that a hung engine is seen within two seconds.
const minStepBound = 1500 * time.Millisecond

// Stats may be called from any goroutine, also while a step hangs.
func (l *Loop) Stats() Stats {
	c := &l.counters
	now := int64(time.Since(l.made))
	running, waiting := l.population()
	s := Stats{
		Steps: c.steps.Load(), Running: running, Waiting: waiting,
		WaitingPrefillTokens: c.waitingPrefill.Load(), FreeBlocks: l.cache.Free(), TotalBlocks: l.cache.Total(),
		CachedBlocks: l.cache.Cached(), FreeHostBlocks: l.cache.FreeHost(), TotalHostBlocks: l.cfg.Runner.HostBlocks,
		GeneratedTokens: c.generated.Load(), PrefilledTokens: c.prefilled.Load(), Cancelled: c.cancelled.Load(),
		Preempted: c.preempted.Load(), RefusedSteps: c.refused.Load(),
		Swapped: c.swapped.Load(), Paused: int(c.paused.Load()), Stalled: int(c.stalled.Load()), PrefixLookups: c.lookups.Load(), PrefixHits: c.hits.Load(),
		HeldBack: int(c.heldBack.Load()), HeldBackTime: time.Duration(c.heldBackTime.Load()),
		CachedTokens: c.cachedTokens.Load(), StepsAfterCancel: c.afterCancel.Load(),
		StepBound: max(minStepBound, 4*time.Duration(c.longest.Load())),
	}
	if at := c.oldest.Load(); at != 0 {
		s.QueueAge = max(time.Duration(now-at), 1)
	}
	if at := c.stepEnd.Load(); at != 0 {
		s.LastStepAge = max(time.Duration(now-at), 1)
	}
	if at := c.stepStart.Load(); at != 0 {
		s.RunningStepAge = max(time.Duration(now-at), 1)
	}
	return s
}
