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

// Config sizes a loop; Runner is the configuration its runner was made with.
type Config struct {
	Runner     engine.RunnerConfig
	Context    int           // longest sequence in tokens
	MaxWaiting int           // requests that may wait for a slot; 0 = 1024
	Chunk      int           // fixed prefill chunk in tokens; 0 = as many as StepTarget and SharedTarget allow
	StepTarget time.Duration // wanted length of a step in which nothing decodes; 0 = 250 ms
	// SharedTarget is the wanted length of a step in which sequences decode: each of them waits for all of it, so that as many prompt
	// tokens join as keep it so short. 0 = 50 ms.
	SharedTarget time.Duration
	YieldAfter   time.Duration // how long a slow reader keeps its place in the batch while others wait; 0 = 250 ms
	// StallLimit is how long a reader may leave its sequence paused, counted while others wait for the sequence's place and
	// after it had to give that up; then the sequence ends. 0 = 30 s.
	StallLimit time.Duration
	Observer   Observer // nil: nobody is told
	// MaxQueueTime is how long a request may wait for its first place, unless it is resumed; 0 = as long as its reader does.
	MaxQueueTime time.Duration
	// OneClass: both kernel classes give the same bits (engine.DeviceInfo.OneClass), so that a cached block is the same whichever
	// class computed its tokens.
	OneClass bool
	// HostRate is the bytes a second that blocks move to host memory and back; 0 = unknown, and taken for 20 GB/s.
	// BlockBytes is what one block moves (engine.RunnerCost.HostBytesPerBlock). Together with the pace of prompts they decide
	// whether a preempted sequence waits in host memory, of which there are Runner.HostBlocks, or is computed again.
	HostRate   float64
	BlockBytes uint64
	// Grain: a step whose prefill tokens are a multiple of it computes them fastest (engine.RunnerCost.PrefillGrain). 0 = any number.
	Grain int
	// LongestStep is how long a step of MinChunk tokens took before; Stats.StepBound begins from it. 0 = not known.
	LongestStep time.Duration
}

// Loop runs the sequences of one model. Submit and Stats may be called from any goroutine.
type Loop struct {
	cfg    Config
	runner engine.Runner
	cache  *kvcache.Cache
	logger hclog.Logger
	made   time.Time
	wake   chan struct{}
	done   chan struct{} // closed when Run has ended
	counters
	prefixes prefixes

	mail struct {
		sync.Mutex
		arrivals  []*sequence
		ages      uint64
		queued    int    // arrivals and waiting
		submitted uint64 // number of the step composed last; a cancellation reads it in one go with taking effect
		ended     uint64 // steps that have ended
		closed    error  // not nil: nothing more is taken
	}

	// Owned by Run.
	queue       fairqueue.Queue[*sequence] // those that wait for a place
	held        map[string]int             // places by tenant; no entry is 0
	turns       map[string]uint64          // by tenant in held: when prompts of it had their turn, counted in turns
	lastTurn    uint64
	running     []*sequence // with a place, to be planned; by urgency
	departing   []*sequence // with a place until their last step in flight has ended; none is planned
	slots       []*sequence // by slot id
	generations []uint32    // by slot id
	flights     []*flight   // steps submitted whose results are not read yet, the oldest first; at most depth
	plan        plan
	// short: a running sequence waits for the blocks of departing ones. Nobody is admitted before it had its turn.
	short      bool
	guest      *sequence // who gets the place that was taken back for fairness; nil: nobody
	shareAfter time.Time // no place is taken back for fairness before
	kept       []*family // those that keep their prompt's blocks, the oldest first
	prefill    rate      // of the device
	rest       [][]part  // what of a refused step is still to be submitted, the next last
	alone      pace      // of steps that compute prompts alone
	shared     pace      // of those in which sequences decode
	gather     gather
	slowdown   slowdown
}

// New returns a loop over runner, which it does not close.
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
		cfg: cfg, runner: runner, logger: logger.Named("batch"), made: time.Now(),
		cache: kvcache.New(kvcache.Config{
			Blocks: cfg.Runner.KVBlocks, BlockSize: cfg.Runner.BlockSize, HostBlocks: cfg.Runner.HostBlocks,
		}),
		prefixes: prefixes{cached: map[uint64]struct{}{}},
		wake:     make(chan struct{}, 1), done: make(chan struct{}),
		slots:       make([]*sequence, cfg.Runner.MaxSequences),
		held:        map[string]int{},
		turns:       map[string]uint64{},
		generations: make([]uint32, cfg.Runner.MaxSequences),
		alone:       newPace(cfg.StepTarget, cfg.Grain),
		shared:      newPace(cfg.SharedTarget, cfg.Grain),
		gather:      gather{limit: cfg.SharedTarget, grain: cfg.Grain},
		slowdown:    slowdown{most: cfg.SharedTarget, own: map[string]work{}},
	}
	l.counters.longest.Store(int64(cfg.LongestStep))
	return l
}

// Refuse makes the loop take nothing more: Submit returns cause from now on. Sequences it has go on.
func (l *Loop) Refuse(cause error) {
	l.mail.Lock()
	defer l.mail.Unlock()
	if l.mail.closed == nil {
		l.mail.closed = cause
	}
}

// Idle says whether no sequence waits or runs.
func (l *Loop) Idle() bool {
	running, waiting := l.population()
	return running+waiting == 0
}

// population is how many sequences run and wait at one moment: one that goes from one list to the other is in either.
func (l *Loop) population() (running, waiting int) {
	l.mail.Lock()
	defer l.mail.Unlock()
	return int(l.counters.running.Load()), int(l.counters.waiting.Load())
}

func (l *Loop) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run owns the device until ctx ends or the device fails; the cause ends every sequence left. A step that the engine
// refuses ends at most the sequences that it refuses alone. Run locks its OS thread: engines may keep state by thread.
func (l *Loop) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer close(l.done)
	err := l.rounds(ctx)
	l.Refuse(fmt.Errorf("%w: %w", ErrClosed, err))
	l.collect()
	for _, s := range slices.Concat(l.running, l.departing, slices.Collect(l.queue.Each)) {
		if !s.over {
			s.stream.end(err)
		}
	}
	l.running, l.departing, l.queue = nil, nil, fairqueue.Queue[*sequence]{}
	now := time.Now()
	l.holdBack(0, now)
	l.report(now)
	return err
}

// rounds runs until ctx ends or the device fails.
func (l *Loop) rounds(ctx context.Context) error {
	for ctx.Err() == nil {
		idle, err := l.round(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrStepFailed, err)
		}
		if idle {
			l.abandon()
			l.sleep(ctx)
		}
	}
	if err := l.settle(ctx); err != nil { // the runner may be closed afterwards
		return fmt.Errorf("%w: %w", ErrStepFailed, err)
	}
	return context.Cause(ctx)
}

// round plans and submits a step while fewer than depth are in flight, and then waits for the oldest if there is no room or
// nothing to plan. A step is thereby planned while the one before it runs, and results are delivered while the one behind
// them does. idle: nothing is in flight and nothing is to be done.
func (l *Loop) round(ctx context.Context) (idle bool, err error) {
	l.collect()
	now := time.Now()
	l.reap(now)
	l.admit(now)
	l.announce()
	l.report(now)
	planned := l.choose(now)
	if planned {
		if err := l.carryOut(ctx); err != nil {
			return false, err
		}
	}
	switch n := len(l.flights); {
	case n == depth || n > 0 && !planned:
		return false, l.land(ctx)
	default:
		return n == 0 && !planned, nil
	}
}

// sleep waits for mail, or for ctx to end; paused sequences are looked at again in time for their limits.
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
	l.mail.Lock()
	for _, s := range l.mail.arrivals {
		l.queue.Push(s, s.class(), s.age)
	}
	clear(l.mail.arrivals)
	l.mail.arrivals = l.mail.arrivals[:0]
	l.mail.Unlock()
}

// report writes the counters that others read.
func (l *Loop) report(now time.Time) {
	prefill, paused, stalled := 0, 0, 0
	oldest := time.Time{} // arrival of what waits for its first place for longest
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
	l.mail.Lock()
	defer l.mail.Unlock()
	for _, s := range l.mail.arrivals {
		count(s)
	}
	at := int64(0)
	if !oldest.IsZero() {
		at = max(int64(oldest.Sub(l.made)), 1)
	}
	l.mail.queued = l.queue.Len() + len(l.mail.arrivals)
	l.counters.oldest.Store(at)
	l.counters.waiting.Store(int64(l.mail.queued))
	l.counters.running.Store(int64(len(l.running) + len(l.departing)))
	l.counters.paused.Store(int64(paused))
	l.counters.stalled.Store(int64(stalled))
	l.counters.waitingPrefill.Store(int64(prefill))
}
