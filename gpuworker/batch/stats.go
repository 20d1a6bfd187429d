package batch

import (
	"sync/atomic"
	"time"
)

// Stats describes the work of a loop.
type Stats struct {
	Steps                uint64
	LastStepAge          time.Duration // since the end of the last step; 0 before the first
	RunningStepAge       time.Duration // of the step on the device; 0 when idle
	StepBound            time.Duration // the running step counts as hung after this time
	Running, Waiting     int           // sequences
	WaitingPrefillTokens int64         // prompt tokens to be computed
	Paused               int           // running sequences whose readers must catch up
	// Stalled sequences do not compete for a slot: running ones that were paused for YieldAfter,
	// and waiting ones whose readers must catch up.
	Stalled         int
	HeldBack        int           // running sequences whose prompts the tenant guard holds back
	HeldBackTime    time.Duration // the time that prompts were held back, summed over sequences
	QueueAge        time.Duration // longest wait of a sequence for its first slot; 0: none waits
	FreeBlocks      int           // on the device, including those of idle prefixes
	CachedBlocks    int           // of these, blocks of idle prefixes
	TotalBlocks     int
	FreeHostBlocks  int // in host memory
	TotalHostBlocks int
	// Blocks of the window group, counted as those above; 0 without it.
	FreeWindowBlocks, CachedWindowBlocks, TotalWindowBlocks int
	FreeHostWindowBlocks, TotalHostWindowBlocks             int
	// StartBlocks is how many blocks the next prompt can have: FreeBlocks, or fewer if the window
	// group has too few free ones for a sequence of any length. A prompt gets all blocks of the
	// first group when it starts, and of the window group only those that its window sees.
	StartBlocks int

	// The host tier of the prefix cache; 0 without it. Bytes are those of entries in use, and of
	// copies out to host memory and back in.
	TierBlocks, TotalTierBlocks int // of the first group
	TierBytes, TotalTierBytes   uint64
	TierOutBytes, TierInBytes   uint64
	TierRecalls, TierTokens     uint64 // sequences that began with copies, and the tokens that these saved
	TierEvictions               uint64 // entries that gave way to others
	TierDropped                 uint64 // evicted blocks and states that a step or the host had no room for

	FreeStates       int // saved ones, including those that can be found and that nothing reads
	CachedStates     int // of these, those that can be found
	TotalStates      int
	GeneratedTokens  uint64
	ForcedTokens     uint64 // of these, those that a grammar forced: they were not sampled
	PrefilledTokens  uint64
	Cancelled        uint64 // sequences
	Preempted        uint64 // preemptions
	Swapped          uint64 // of these, the ones that moved blocks to host memory
	PrefixLookups    uint64 // sequences that looked for a prefix at their first slot
	PrefixHits       uint64 // of these, the ones that found at least one block
	CachedTokens     uint64 // prompt tokens from the prefix cache
	RefusedSteps     uint64 // steps that the engine refused
	StepsAfterCancel uint64 // steps with a cancelled sequence beyond those in flight
}

// HeldBlocks returns how many of TotalBlocks are held by sequences, or the same share of
// TotalBlocks as of the window group, if that is the larger one.
func (s Stats) HeldBlocks() int {
	held := s.TotalBlocks - s.FreeBlocks
	if n := s.TotalWindowBlocks; n > 0 {
		held = max(held, (s.TotalBlocks*(n-s.FreeWindowBlocks)+n-1)/n)
	}
	return held
}

type counters struct {
	steps, generated, prefilled, cancelled, preempted, swapped, afterCancel, refused, forced atomic.Uint64
	lookups, hits, cachedTokens                                                              atomic.Uint64
	running, waiting, waitingPrefill, paused, stalled, heldBack                              atomic.Int64
	heldBackTime                                                                             atomic.Int64 // ns
	stepStart, stepEnd, oldest                                                               atomic.Int64 // ns since created; 0 = none
	longest                                                                                  atomic.Int64 // ns; decaying maximum
}

// minStepBound is the least time after which a step counts as hung: well above any step that the
// loop plans, and short enough to detect a hung engine within two seconds.
const minStepBound = 1500 * time.Millisecond

// Stats may be called from any goroutine, even while a step hangs.
func (l *Loop) Stats() Stats {
	c := &l.counters
	now := int64(time.Since(l.created))
	running, waiting := l.population()
	s := Stats{
		Steps: c.steps.Load(), Running: running, Waiting: waiting,
		WaitingPrefillTokens: c.waitingPrefill.Load(), FreeBlocks: l.cache.Free(), TotalBlocks: l.cache.Total(),
		CachedBlocks: l.cache.Cached(), FreeHostBlocks: l.cache.FreeHost(), TotalHostBlocks: l.cfg.Runner.HostBlocks - l.cfg.Tier.Blocks,
		FreeWindowBlocks: l.cache.FreeWindow(), CachedWindowBlocks: l.cache.CachedWindow(), TotalWindowBlocks: l.cfg.Runner.WindowBlocks,
		FreeHostWindowBlocks: l.cache.FreeHostWindow(), TotalHostWindowBlocks: l.cfg.Runner.HostWindowBlocks - l.cfg.Tier.WindowBlocks,
		FreeStates: l.cache.FreeStates(), CachedStates: l.cache.CachedStates(), TotalStates: l.cfg.Runner.SavedStates,
		GeneratedTokens: c.generated.Load(), ForcedTokens: c.forced.Load(), PrefilledTokens: c.prefilled.Load(), Cancelled: c.cancelled.Load(),
		Preempted: c.preempted.Load(), RefusedSteps: c.refused.Load(),
		Swapped: c.swapped.Load(), Paused: int(c.paused.Load()), Stalled: int(c.stalled.Load()), PrefixLookups: c.lookups.Load(), PrefixHits: c.hits.Load(),
		HeldBack: int(c.heldBack.Load()), HeldBackTime: time.Duration(c.heldBackTime.Load()),
		CachedTokens: c.cachedTokens.Load(), StepsAfterCancel: c.afterCancel.Load(),
		StepBound: max(minStepBound, 4*time.Duration(c.longest.Load())),
	}
	s.StartBlocks = l.startBlocks(s.FreeBlocks, s.FreeWindowBlocks)
	l.tierStats(&s)
	if t := c.oldest.Load(); t != 0 {
		s.QueueAge = max(time.Duration(now-t), 1)
	}
	if t := c.stepEnd.Load(); t != 0 {
		s.LastStepAge = max(time.Duration(now-t), 1)
	}
	if t := c.stepStart.Load(); t != 0 {
		s.RunningStepAge = max(time.Duration(now-t), 1)
	}
	return s
}

// Observer receives the measurements of a loop on the loop's own goroutine, so its methods must
// return at once.
type Observer interface {
	// Admitted reports the first slot of a sequence: how long it waited, the length of its prompt,
	// and how many of those tokens came from the prefix cache.
	Admitted(waited time.Duration, prompt, cached int)
	// Stepped reports a finished step: its sequences and tokens, and its time on the device.
	Stepped(sequences, promptTokens, decodeTokens int, took time.Duration)
	// FirstToken and NextToken report the time to first token (TTFT) and each inter-token latency
	// (ITL).
	FirstToken(sinceArrival time.Duration)
	NextToken(gap time.Duration)
	// Preempted reports a preemption.
	Preempted(Preemption)
	// Freed reports that a cancelled sequence has freed its blocks: how long after the
	// cancellation, and how many steps had ended in between.
	Freed(after time.Duration, steps int)
}

// Preemption is how a preempted sequence is restored.
type Preemption int

// Preemptions.
const (
	Recompute Preemption = iota // its positions are computed again
	Swap                        // its blocks wait in host memory
)
