package batch

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
	"github.com/millrace/millrace/internal/fairqueue"
)

// Config sizes a loop.
type Config struct {
	Runner     engine.RunnerConfig // the configuration that the runner was created with
	Context    int                 // longest sequence in tokens
	MaxWaiting int                 // requests that may wait for a slot; 0 = 1024
	// Chunk is a fixed prefill chunk in tokens. 0 = as many as StepTarget and SharedTarget allow.
	Chunk int
	// StepTarget is the wanted length of a step without decoding sequences. 0 = 250 ms.
	StepTarget time.Duration
	// SharedTarget is the wanted length of a step with decoding sequences. It bounds their
	// inter-token latency, because each of them waits for the whole step. 0 = 50 ms.
	SharedTarget time.Duration
	// YieldAfter is how long a slow consumer keeps its slot while others wait. 0 = 250 ms.
	YieldAfter time.Duration
	// StallLimit is how long a slow consumer may leave its sequence paused before the sequence
	// ends. Time counts while others wait for the sequence's slot, and after it lost the slot. 0 =
	// 30 s.
	StallLimit time.Duration
	Observer   Observer // nil: none
	// MaxQueueTime is how long a request may wait for its first slot, unless it is resumed. 0 = no
	// limit.
	MaxQueueTime time.Duration
	// OneClass states that both kernel classes give the same bits (engine.DeviceInfo.OneClass). A
	// cached block is then valid for both classes.
	OneClass bool
	// WholeTexts states that a layer sees later positions (engine.ModelDesc.WholeTexts): the model makes
	// vectors alone, and a prompt is one segment of one step.
	WholeTexts bool
	// HostRate is the bandwidth between KV blocks and host memory in bytes a second; 0 = unknown,
	// assumed to be 20 GB/s. BlockBytes is the size of one block there
	// (engine.RunnerCost.HostBytesPerBlock). With the measured prefill rate they decide whether a
	// preempted sequence is swapped to one of the Runner.HostBlocks or recomputed.
	HostRate   float64
	BlockBytes uint64
	// Window is the window of the layers whose blocks are the Runner.WindowBlocks
	// (engine.ModelDesc.GroupWindow), in positions; 0 = the runner has no window group.
	// WindowBlockBytes is the size of one of these blocks in host memory. States excludes it.
	Window           int
	WindowBlockBytes uint64
	// States states that layers carry a state from position to position
	// (engine.ModelDesc.StateFloats), and StateBytes is its size in host memory. A sequence then
	// starts where one of the Runner.SavedStates stands, and is swapped with its state.
	// Of a long text a state is saved once in StateInterval tokens; 0 = 512.
	States        bool
	StateBytes    uint64
	StateInterval int
	// Tier is the host tier of the prefix cache. It needs the sizes above, and a measured HostRate. A
	// sequence begins with copies from it if these save at least LeastRecall tokens; 0 = 64.
	Tier        Tier
	LeastRecall int
	// Grain is the number of prefill tokens that fills the device's tiles
	// (engine.RunnerCost.PrefillGrain). Multiples of it are the fastest. 0 = any number.
	Grain int
	// LongestStep is the measured length of a step of MinChunk tokens, or with WholeTexts of the longest
	// text, from which Stats.StepBound starts. 0 = unknown.
	LongestStep time.Duration

	moves        int         // of a step at most; 0 = maxMoves
	masks        *maskLimits // nil = usualMasks
	sampleForced bool        // tests compare with forced tokens that are sampled
}

// Loop runs the sequences of one model. Submit, Stats, Prefixes, Refuse and Idle may be called from
// any goroutine.
type Loop struct {
	cfg     Config
	runner  engine.Runner
	masker  engine.LateMasker // runner, if it can
	cache   *kvcache.Cache
	logger  hclog.Logger
	created time.Time
	wake    chan struct{}
	done    chan struct{} // closed when Run has ended
	counters
	prefixes *prefixes
	pool     *maskPool

	inbox struct {
		sync.Mutex
		arrivals  []*sequence
		ages      uint64
		queued    int    // arrivals and waiting sequences
		submitted uint64 // number of the newest step; see compose
		ended     uint64 // steps that have ended
		closed    error  // not nil: Submit returns it
	}

	// The fields below are owned by Run.
	queue       fairqueue.Queue[*sequence] // sequences without a slot
	held        map[string]int             // slots by tenant; no entry is 0
	lastServed  map[string]uint64          // by tenant in held: serveCount at its last chunk
	serveCount  uint64
	running     []*sequence // sequences with a slot that may be planned, most urgent first
	tails       int         // running sequences that hold a saved state for the end of their answers
	departing   []*sequence // sequences that keep their slot until their last step in flight ends
	slots       []*sequence // by slot id
	generations []uint32    // by slot id
	flights     []*flight   // submitted steps without results, oldest first; at most depth
	plan        plan
	maskRows    [][]uint32 // of the newest step
	maskJobs    []*maskJob
	maskOnes    []uint32
	lastStep    time.Duration // length of the last step that ended
	// short: a running sequence needs blocks that departing sequences still hold. Nobody is
	// admitted until it got them, or the newcomer would take them first.
	short         bool
	reservedFor   *sequence        // waiting sequence for which fairness preempted; nil: none
	shareAfter    time.Time        // fairness does not preempt again before
	sharedPrompts []*sequenceGroup // groups that hold their prompt's blocks, oldest first
	prefill       rate             // measured speed of prefill
	retries       [][]part         // pieces of a refused step, the next one last
	prefillOnly   chunkSizer       // for steps without decoding sequences
	mixed         chunkSizer       // for steps with decoding sequences
	coalescer     prefillCoalescer
	guard         tenantGuard
}

// New returns a loop over runner. The caller closes the runner, after Run has returned.
func New(cfg Config, runner engine.Runner, logger hclog.Logger) *Loop {
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = 1024
	}
	if cfg.StepTarget == 0 {
		cfg.StepTarget = 250 * time.Millisecond
	}
	if cfg.SharedTarget == 0 {
		cfg.SharedTarget = 50 * time.Millisecond
	}
	if cfg.moves == 0 {
		cfg.moves = maxMoves
	}
	if cfg.masks == nil {
		cfg.masks = &usualMasks
	}
	if cfg.StateInterval == 0 {
		cfg.StateInterval = usualStateInterval
	}
	if cfg.Tier.Blocks == 0 || cfg.States && cfg.Runner.SavedStates == 0 {
		cfg.Tier = Tier{} // no sequence can start with blocks alone, or without any
	}
	if cfg.LeastRecall == 0 {
		cfg.LeastRecall = usualRecall
	}
	if cfg.YieldAfter == 0 {
		cfg.YieldAfter = 250 * time.Millisecond
	}
	if cfg.HostRate == 0 {
		cfg.HostRate = 20e9
	}
	if cfg.StallLimit == 0 {
		cfg.StallLimit = 30 * time.Second
	}
	l := &Loop{
		cfg: cfg, runner: runner, logger: logger.Named("batch"), created: time.Now(),
		prefixes: newPrefixes(),
		wake:     make(chan struct{}, 1), done: make(chan struct{}),
		slots:       make([]*sequence, cfg.Runner.MaxSequences),
		held:        map[string]int{},
		lastServed:  map[string]uint64{},
		generations: make([]uint32, cfg.Runner.MaxSequences),
		prefillOnly: newChunkSizer(cfg.StepTarget, cfg.Grain),
		mixed:       newChunkSizer(cfg.SharedTarget, cfg.Grain),
		coalescer:   prefillCoalescer{limit: cfg.SharedTarget, grain: cfg.Grain},
		guard:       tenantGuard{maxCredit: cfg.SharedTarget, perTenant: map[string]work{}},
	}
	l.cache = kvcache.New(kvcache.Config{
		Blocks: cfg.Runner.KVBlocks, BlockSize: cfg.Runner.BlockSize, HostBlocks: cfg.Runner.HostBlocks - cfg.Tier.Blocks,
		States: cfg.Runner.SavedStates, HostStates: cfg.Runner.HostStates - cfg.Tier.States,
		Window: cfg.Window, WindowBlocks: cfg.Runner.WindowBlocks, HostWindowBlocks: cfg.Runner.HostWindowBlocks - cfg.Tier.WindowBlocks,
		Tier: kvcache.TierConfig{
			Blocks: cfg.Tier.Blocks, WindowBlocks: cfg.Tier.WindowBlocks, States: cfg.Tier.States,
			Plan: l.tierMove, Room: l.roomForOuts,
		},
	})
	l.counters.longest.Store(int64(cfg.LongestStep))
	l.masker, _ = runner.(engine.LateMasker)
	l.pool = newMaskPool(l.nudge)
	return l
}

// Refuse makes Submit return cause from now on. Sequences that were submitted continue.
func (l *Loop) Refuse(cause error) {
	l.inbox.Lock()
	defer l.inbox.Unlock()
	if l.inbox.closed == nil {
		l.inbox.closed = cause
	}
}

// Idle reports whether no sequence waits or runs.
func (l *Loop) Idle() bool {
	running, waiting := l.population()
	return running+waiting == 0
}

// population returns how many sequences run and wait. It reads both under the inbox lock, because a
// sequence that moves from one list to the other would otherwise be counted twice or not at all.
func (l *Loop) population() (running, waiting int) {
	l.inbox.Lock()
	defer l.inbox.Unlock()
	return int(l.counters.running.Load()), int(l.counters.waiting.Load())
}

func (l *Loop) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run drives the device until ctx ends or the device fails, and ends every remaining sequence with
// that cause. It locks its OS thread, because engines may keep state by thread.
func (l *Loop) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer close(l.done)
	err := l.rounds(ctx)
	l.pool.close()
	l.Refuse(fmt.Errorf("%w: %w", ErrClosed, err))
	l.collect()
	for _, s := range slices.Concat(l.running, l.departing, slices.Collect(l.queue.Each)) {
		if !s.ended {
			s.stream.end(err)
		}
	}
	l.running, l.departing, l.queue = nil, nil, fairqueue.Queue[*sequence]{}
	now := time.Now()
	l.recordHeldBack(0, now)
	l.report(now)
	return err
}

// rounds runs rounds until ctx ends or the device fails.
func (l *Loop) rounds(ctx context.Context) error {
	for ctx.Err() == nil {
		idle, err := l.round(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrStepFailed, err)
		}
		if idle {
			l.dropMoves()
			l.sleep(ctx)
		}
	}
	if err := l.finishAll(ctx); err != nil { // the caller may close the runner next
		return fmt.Errorf("%w: %w", ErrStepFailed, err)
	}
	return context.Cause(ctx)
}

// round plans and submits a step if fewer than depth are in flight. It then waits for the oldest
// step if depth are in flight or nothing could be planned. idle reports that nothing is in flight
// and nothing can be planned.
func (l *Loop) round(ctx context.Context) (idle bool, err error) {
	l.collect()
	now := time.Now()
	l.reap(now)
	l.continueRecalls()
	l.admit(now)
	l.publishPrefixChanges()
	l.report(now)
	planned := l.choose(now)
	if planned {
		if err := l.execute(ctx); err != nil {
			return false, err
		}
	}
	switch n := len(l.flights); {
	case n == depth || n > 0 && !planned:
		return false, l.finishOldest(ctx)
	default:
		return n == 0 && !planned, nil
	}
}

// sleep waits until the inbox changes or ctx ends. If sequences are paused it also wakes in time to
// enforce YieldAfter and StallLimit, because a reader that does nothing causes no wake-up.
func (l *Loop) sleep(ctx context.Context) {
	var stall <-chan time.Time
	if len(l.running)+l.queue.Len() > 0 {
		timer := time.NewTimer(max(min(l.cfg.YieldAfter, l.cfg.StallLimit)/8, time.Millisecond))
		defer timer.Stop()
		stall = timer.C
	}
	select {
	case <-l.wake:
	case <-stall:
	case <-ctx.Done():
	}
}

// collect moves arrivals to the queue.
func (l *Loop) collect() {
	l.inbox.Lock()
	for _, s := range l.inbox.arrivals {
		l.queue.Push(s, s.class(), s.age)
	}
	clear(l.inbox.arrivals)
	l.inbox.arrivals = l.inbox.arrivals[:0]
	l.inbox.Unlock()
}

// report publishes the counters that Stats reads.
func (l *Loop) report(now time.Time) {
	prefill, paused, stalled := 0, 0, 0
	oldest := time.Time{} // arrival of the sequence that waits longest for its first slot
	count := func(s *sequence) {
		prefill += len(s.tokens)
		if s.started.IsZero() && (oldest.IsZero() || s.arrived.Before(oldest)) {
			oldest = s.arrived
		}
	}
	for s := range l.queue.Each {
		count(s)
		if !s.started.IsZero() && s.full() {
			stalled++
		}
	}
	for _, s := range l.running {
		if !s.decoding() {
			prefill += s.length() - s.submitted
		}
		if !s.paused {
			s.pausedSince = time.Time{}
			continue
		}
		paused++
		if s.pausedSince.IsZero() {
			s.pausedSince = now
		}
		if now.Sub(s.pausedSince) > l.cfg.YieldAfter {
			stalled++
		}
	}
	l.inbox.Lock()
	defer l.inbox.Unlock()
	for _, s := range l.inbox.arrivals {
		count(s)
	}
	oldestAge := int64(0)
	if !oldest.IsZero() {
		oldestAge = max(int64(oldest.Sub(l.created)), 1)
	}
	l.inbox.queued = l.queue.Len() + len(l.inbox.arrivals)
	l.counters.oldest.Store(oldestAge)
	l.counters.waiting.Store(int64(l.inbox.queued))
	l.counters.running.Store(int64(len(l.running) + len(l.departing)))
	l.counters.paused.Store(int64(paused))
	l.counters.stalled.Store(int64(stalled))
	l.counters.waitingPrefill.Store(int64(prefill))
}
