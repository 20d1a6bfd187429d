package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Fleet follows workers. New makes it, and Run must be called once.
type Fleet struct {
	cfg      Config
	logger   hclog.Logger
	snapshot atomic.Pointer[Snapshot]
	dirty    chan struct{} // capacity 1: a change that must be published at once
	numbers  chan struct{} // capacity 1: a change of numbers, which may wait
	running  sync.WaitGroup
	links    sync.Map      // *Link to nothing: the open ones
	prefixes route.Indexes // of all workers
	events   eventCounters

	mu struct {
		sync.Mutex
		members   map[string]*member        // by address
		addresses map[string][]string       // by configured target; absent until it was looked up once
		problems  map[string]string         // of targets without an address
		loads     map[workerRun]*sharedLoad // what this process has on each run of a worker
		graceOver bool                      // whether the grace after the start is over

		order    []*member         // members by address
		shadowed map[*entry]shadow // of the last snapshot; nil: to be computed
		warned   map[string]bool   // addresses of duplicates that were logged
	}
}

// workerRun identifies one run of a worker.
type workerRun struct{ id, incarnation string }

// New returns a fleet that follows no worker yet. It checks the targets of cfg.
func New(cfg Config, logger hclog.Logger) (*Fleet, error) {
	f := &Fleet{
		cfg: cfg.withDefaults(), logger: logger.Named("fleet"), dirty: make(chan struct{}, 1), numbers: make(chan struct{}, 1),
	}
	f.mu.members, f.mu.addresses, f.mu.problems = map[string]*member{}, map[string][]string{}, map[string]string{}
	f.mu.loads, f.mu.warned = map[workerRun]*sharedLoad{}, map[string]bool{}
	for _, target := range cfg.Workers {
		if err := CheckTarget(target); err != nil {
			return nil, err
		}
	}
	f.snapshot.Store(assemble(false, nil, nil))
	return f, nil
}

// Snapshot returns the newest snapshot; never nil.
func (f *Fleet) Snapshot() *Snapshot { return f.snapshot.Load() }

// Run follows the workers until ctx ends. When it returns nil, all its goroutines have ended.
func (f *Fleet) Run(ctx context.Context) error {
	for _, target := range f.cfg.Workers {
		host, port, err := parseTarget(target)
		if err != nil {
			return err
		}
		if host == "" {
			f.follow(ctx, target, []string{target})
			continue
		}
		f.running.Go(func() { f.resolve(ctx, target, host, port) })
	}
	f.running.Go(func() { f.detectSilence(ctx) })
	f.running.Go(func() {
		if sleep(ctx, f.cfg.Grace) {
			f.mu.Lock()
			f.mu.graceOver = true
			f.mu.Unlock()
			f.publishSoon()
		}
	})
	for ok := true; ok; ok = f.awaitChange(ctx) {
		f.publish()
	}
	f.running.Wait()
	return nil
}

// follow sets the addresses of a configured target. It follows new ones, and leaves those that no
// target has any more.
func (f *Fleet) follow(ctx context.Context, target string, addresses []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.addresses[target] = addresses
	delete(f.mu.problems, target)
	wanted := map[string]bool{}
	for _, all := range f.mu.addresses {
		for _, a := range all {
			wanted[a] = true
			if f.mu.members[a] == nil {
				m := newMember(a, tracker{index: &f.prefixes, urgent: f.cfg.Urgent})
				var following context.Context
				following, m.cancel = context.WithCancel(ctx)
				f.mu.members[a] = m
				f.running.Go(func() { f.run(following, m) })
			}
		}
	}
	for a, m := range f.mu.members {
		if !wanted[a] {
			f.logger.Info("worker left the configured names", "address", a)
			m.cancel()
			delete(f.mu.members, a)
		}
	}
	f.mu.order, f.mu.shadowed = sorted(f.mu.members), nil
	f.publishSoon()
}

// sorted returns the members by address.
func sorted(members map[string]*member) []*member {
	return slices.SortedFunc(maps.Values(members), func(a, b *member) int { return cmp.Compare(a.address, b.address) })
}

// detectSilence ticks the links. It sleeps the whole time after each tick, so that a tick that was
// late does not shorten the next one.
func (f *Fleet) detectSilence(ctx context.Context) {
	for sleep(ctx, f.cfg.Stale/staleTicks) {
		f.links.Range(func(link, _ any) bool {
			link.(*Link).tick()
			return true
		})
	}
}

// dedupe returns the distinct targets.
func dedupe(targets []string) []string {
	sorted := slices.Sorted(slices.Values(targets))
	return slices.Compact(sorted)
}

// sleep waits for d. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
