package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// coalesce is how long changes gather before a snapshot is made of them: a fleet that reports often is copied at most
// so often.
const coalesce = 2 * time.Millisecond

// settle is the same for numbers that workers report at their intervals: what this process itself sends is counted at once.
const settle = 20 * time.Millisecond

// await waits until a snapshot is due; false means that ctx ended first.
func (f *Fleet) await(ctx context.Context) bool {
	if !sleep(ctx, coalesce) {
		return false
	}
	select {
	case <-f.dirty:
		return true
	case <-f.counts:
	case <-ctx.Done():
		return false
	}
	t := time.NewTimer(settle - coalesce)
	defer t.Stop()
	select {
	case <-t.C:
	case <-f.dirty:
	case <-ctx.Done():
		return false
	}
	return true
}

// touch asks for a new snapshot.
func (f *Fleet) touch() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// recount asks for one that need not come at once.
func (f *Fleet) recount() {
	select {
	case f.counts <- struct{}{}:
	default:
	}
}

// publish makes a snapshot of what is known now. Members that have not changed since the last one are copied from there.
func (f *Fleet) publish() {
	f.mu.Lock()
	known := len(f.entries) == len(dedupe(f.cfg.Workers))
	entries := make([]*entry, 0, len(f.order)+len(f.problems))
	identities := f.shadowed == nil
	for _, m := range f.order {
		is, tried, identity := m.refresh()
		entries = append(entries, is)
		known, identities = known && tried, identities || identity
	}
	if identities {
		f.shadowed = shadows(entries)
		f.warnLocked(f.shadowed)
	}
	for _, m := range f.unnamedLocked() {
		entries = append(entries, &entry{m, routed(&m, nil)})
	}
	if len(f.problems) > 0 {
		slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.Address, b.Address) })
	}
	now := assemble(known || f.grace, entries, f.shadowed)
	f.mu.Unlock()
	close(f.snapshot.Swap(now).next)
}

// warnLocked logs each duplicate once: an address that is left out because the process at another one has its worker_id. When the
// duplicate is gone, the next one is logged again.
func (f *Fleet) warnLocked(shadowed map[*entry]shadow) {
	now := map[string]bool{}
	for e, why := range shadowed {
		if !why.duplicate {
			continue
		}
		now[e.Address] = true
		if !f.warned[e.Address] {
			f.logger.Warn("two workers have one id, the second gets no requests: give each worker its own --worker-id",
				"worker", e.Report.GetWorkerId(), "serves", why.by, "left_out", e.Address)
		}
	}
	f.warned = now
}

// Members are the members as of now, newer than any snapshot in what changes with every heartbeat.
func (f *Fleet) Members() []Member {
	f.mu.Lock()
	entries := make([]*entry, 0, len(f.order)+len(f.problems))
	for _, m := range f.order {
		entries = append(entries, &entry{Member: m.view()})
	}
	for _, m := range f.unnamedLocked() {
		entries = append(entries, &entry{Member: m})
	}
	f.mu.Unlock()
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.Address, b.Address) })
	return assemble(true, entries, shadows(entries)).Members
}
