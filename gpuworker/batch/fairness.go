package batch

import (
	"cmp"
	"slices"
	"time"
)

// shareCost bounds the device time that fairness may cost. After a preemption for fairness there is
// none for shareCost times as long as restoring the preempted sequence takes. So at most one part
// in nine of the device's time is lost, whatever tenants do.
const shareCost = 8

// charge bills the tenant of s for the positions computed since the last charge. Those that
// are recomputed after a preemption cost nothing, because the tenant has paid for them.
func (l *Loop) charge(s *sequence) {
	if n := s.computed - s.charged; n > 0 {
		l.queue.Charge(s.class(), n)
		s.charged = s.computed
	}
}

// prefillOrder returns the running sequences that still need prefill, in the order in which they
// get room in the step: by priority, then round robin over tenants, then by age. So a tenant waits
// for at most one chunk of each other tenant, however many prompts those have.
func (l *Loop) prefillOrder() []*sequence {
	sequences := slices.DeleteFunc(slices.Clone(l.running), (*sequence).decoding)
	if len(l.held) > 1 {
		slices.SortStableFunc(sequences, func(a, b *sequence) int {
			return cmp.Or(cmp.Compare(b.request.Priority, a.request.Priority),
				cmp.Compare(l.lastServed[a.request.Tenant], l.lastServed[b.request.Tenant]))
		})
	}
	return sequences
}

// markServed moves a tenant to the end of the round robin, because it got its first slot or a
// chunk.
func (l *Loop) markServed(tenant string) {
	l.serveCount++
	l.lastServed[tenant] = l.serveCount
}

// occupy counts a slot that a tenant got.
func (l *Loop) occupy(tenant string) {
	if l.held[tenant]++; l.held[tenant] == 1 {
		l.markServed(tenant)
	}
}

// leave counts a slot that a tenant gave up.
func (l *Loop) leave(tenant string) {
	if l.held[tenant]--; l.held[tenant] == 0 {
		delete(l.held, tenant)
		delete(l.lastServed, tenant)
	}
}

// share preempts for a waiting tenant that has no slot. The victim is the least urgent sequence of
// the tenant with the most slots, if that tenant has more than an equal share and the victim's
// priority is not higher. admit calls it when the first candidate finds no slot.
func (l *Loop) share(now time.Time) {
	if len(l.departing) > 0 || now.Before(l.shareAfter) {
		return
	}
	starved, found := l.queue.Next(func(s *sequence) bool { return l.held[s.request.Tenant] > 0 || s.full() || l.awaitsPrefix(s) })
	if !found {
		return
	}
	tenants, most := map[string]bool{}, 0
	for s := range l.queue.Each {
		tenants[s.request.Tenant] = true
	}
	for tenant, places := range l.held {
		tenants[tenant] = true
		most = max(most, places)
	}
	if most <= (len(l.slots)+len(tenants)-1)/len(tenants) {
		return
	}
	for _, s := range slices.Backward(l.running) {
		if l.held[s.request.Tenant] == most && s.request.Priority <= starved.request.Priority {
			l.reservedFor, l.shareAfter = starved, now.Add(shareCost*l.restoreCost(s))
			l.preempt(s)
			return
		}
	}
}

// restoreCost estimates how long the device takes to restore a preempted sequence: the cheaper of
// recomputing it and of copying its blocks to host memory and back.
func (l *Loop) restoreCost(s *sequence) time.Duration {
	if !l.prefill.known() {
		return l.cfg.StepTarget
	}
	cost := l.prefill.duration(s.computed)
	blocks, windows := l.cache.BlocksFor(s.computed), s.table.WindowBlocks()
	if blocks <= l.cache.FreeHost() && windows <= l.cache.FreeHostWindow() {
		cost = min(cost, l.transfer(2*blocks, 2*windows))
	}
	return cost
}
