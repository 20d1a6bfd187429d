package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Fleet follows workers. Make it with New and run it once.
type Fleet struct {
	cfg      Config
	logger   hclog.Logger
	snapshot atomic.Pointer[Snapshot]
	dirty    chan struct{} // capacity 1: something changed since the last snapshot
	counts   chan struct{} // capacity 1: numbers did
	running  sync.WaitGroup
	links    sync.Map      // *Link to nothing: those that are open
	prefixes route.Indexes // of all workers
	counted  counted

	mu      sync.Mutex
	members map[string]*member  // guarded by mu; by address
	entries map[string][]string // guarded by mu; configured entry to addresses, absent until looked up once
	loads   map[run]*told       // guarded by mu; what this process has under way on each
	grace   bool                // guarded by mu; whether the start-up grace is over

	problems map[string]string // guarded by mu; configured entry without any address to why

	order    []*member         // guarded by mu; members by address
	shadowed map[*entry]shadow // guarded by mu; of the last snapshot
	warned   map[string]bool   // guarded by mu; addresses left out as duplicates that the log has
}

// run is one run of a worker.
type run struct{ id, incarnation string }

// New makes a fleet that follows nobody yet; targets are checked.
func New(cfg Config, logger hclog.Logger) (*Fleet, error) {
	f := &Fleet{
		cfg: cfg.withDefaults(), logger: logger.Named("fleet"), dirty: make(chan struct{}, 1), counts: make(chan struct{}, 1),
		members: map[string]*member{}, entries: map[string][]string{}, loads: map[run]*told{},
		problems: map[string]string{}, warned: map[string]bool{},
	}
	for _, target := range cfg.Workers {
		if err := CheckTarget(target); err != nil {
			return nil, err
		}
	}
	f.snapshot.Store(assemble(false, nil, nil))
	return f, nil
}

// Snapshot is the newest; never nil.
func (f *Fleet) Snapshot() *Snapshot { return f.snapshot.Load() }

// Run follows the workers until ctx ends; every goroutine it started has ended when it returns nil.
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
	f.running.Go(func() { f.watch(ctx) })
	f.running.Go(func() {
		if sleep(ctx, f.cfg.Grace) {
			f.mu.Lock()
			f.grace = true
			f.mu.Unlock()
			f.touch()
		}
	})
	for ok := true; ok; ok = f.await(ctx) {
		f.publish()
	}
	f.running.Wait()
	return nil
}

// resolve looks a name up again and again, and follows the addresses it has.
func (f *Fleet) resolve(ctx context.Context, entry, host, port string) {
	var p pace
	for {
		lookup, cancel := context.WithTimeout(ctx, f.cfg.Resolve)
		hosts, err := f.cfg.Lookup(lookup, host)
		cancel()
		if err == nil && len(hosts) == 0 {
			err = errors.New("it has no address")
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// Workers that are known stay: a name server that is down takes no worker down.
			f.mu.Lock()
			before := f.problems[entry]
			if len(f.entries[entry]) == 0 {
				f.entries[entry], f.problems[entry] = []string{}, unresolved(host, err.Error()).Error()
			}
			again := before != "" && before == f.problems[entry]
			f.mu.Unlock()
			if !again {
				f.logger.Warn("name not resolved", "name", host, "error", err)
			}
			f.touch()
		default:
			addresses := make([]string, len(hosts))
			for i, h := range hosts {
				addresses[i] = net.JoinHostPort(h, port)
			}
			f.follow(ctx, entry, addresses)
		}
		if !sleep(ctx, p.next(hosts, err, time.Now(), f.cfg.Resolve)) {
			return
		}
	}
}

// follow makes addresses the ones of a configured entry: new ones are followed, those in no entry any more are left.
func (f *Fleet) follow(ctx context.Context, entry string, addresses []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries[entry] = addresses
	delete(f.problems, entry)
	wanted := map[string]bool{}
	for _, all := range f.entries {
		for _, a := range all {
			wanted[a] = true
			if f.members[a] == nil {
				m := &member{address: a, load: &told{}, changed: true, tracker: tracker{index: &f.prefixes}}
				var own context.Context
				own, m.leave = context.WithCancel(ctx)
				f.members[a] = m
				f.running.Go(func() { f.run(own, m) })
			}
		}
	}
	for a, m := range f.members {
		if !wanted[a] {
			f.logger.Info("worker left the configured names", "address", a)
			m.leave()
			delete(f.members, a)
		}
	}
	f.order, f.shadowed = sorted(f.members), nil
	f.touch()
}

// sorted are the members by address.
func sorted(members map[string]*member) []*member {
	return slices.SortedFunc(maps.Values(members), func(a, b *member) int { return cmp.Compare(a.address, b.address) })
}

// watch gives up links that are silent. Between two ticks there is the whole time, however late the first was.
func (f *Fleet) watch(ctx context.Context) {
	for sleep(ctx, f.cfg.Stale/staleTicks) {
		f.links.Range(func(link, _ any) bool {
			link.(*Link).tick()
			return true
		})
	}
}

// giveLoad gives a member the load of one incarnation of a worker, the same over all its connections. It has it before anybody
// looks for loads that no member has.
func (f *Fleet) giveLoad(m *member, id, incarnation string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := run{id, incarnation}
	l := f.loads[of]
	if l == nil {
		l = &told{}
		f.forgetLocked()
		f.loads[of] = l
	}
	m.mu.Lock()
	if m.load != l {
		m.load.leave(m)
		m.load, m.changed = l, true
	}
	m.mu.Unlock()
}

// forgetLocked drops the loads of workers that are gone: idle ones that no member has.
func (f *Fleet) forgetLocked() {
	had := map[*told]bool{}
	for _, m := range f.members {
		m.mu.Lock()
		had[m.load] = true
		m.mu.Unlock()
	}
	maps.DeleteFunc(f.loads, func(_ run, l *told) bool { return l.Idle() && !had[l] })
}

// dedupe are the distinct entries.
func dedupe(entries []string) []string {
	sorted := slices.Sorted(slices.Values(entries))
	return slices.Compact(sorted)
}

// sleep waits; false means that ctx ended first.
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
