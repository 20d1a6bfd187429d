package batch

import (
	"cmp"
	"slices"
	"time"
)

// shareCost is how much of the device's time fairness may cost: after a place was taken back, none is for so many times what it
// takes to put its sequence back where it was. At most one part in so many and one is therefore lost, whatever tenants do.
const shareCost = 8

// charge makes the tenant of s pay for what was computed of it beyond what was paid for when it was admitted. What is computed
// again after a preemption costs nothing: the tenant has paid.
func (l *Loop) charge(s *sequence) {
	if n := s.computed - s.charged; n > 0 {
		l.queue.Charge(s.class(), n)
		s.charged = s.computed
	}
}

// inTurn gives the running sequences that do not decode, in the order in which they get room in the round: the higher priority first,
// then tenant after tenant, the one whose turn was longest ago first, then by age. A tenant with a place waits thereby for a step of
// each other one with a place, however many prompts those have.
func (l *Loop) inTurn() []*sequence {
	sequences := slices.DeleteFunc(slices.Clone(l.running), (*sequence).decoding)
	if len(l.held) > 1 {
		slices.SortStableFunc(sequences, func(a, b *sequence) int {
			return cmp.Or(cmp.Compare(b.request.Priority, a.request.Priority),
				cmp.Compare(l.turns[a.request.Tenant], l.turns[b.request.Tenant]))
		})
	}
	return sequences
}

// turn puts a tenant behind all others with places: it has just come to its first, or a chunk of it is in the round.
func (l *Loop) turn(tenant string) {
	l.lastTurn++
	l.turns[tenant] = l.lastTurn
}

// occupy counts a place that a tenant got.
func (l *Loop) occupy(tenant string) {
	if l.held[tenant]++; l.held[tenant] == 1 {
		l.turn(tenant)
	}
}

// leave counts a place that a tenant gave back.
func (l *Loop) leave(tenant string) {
	if l.held[tenant]--; l.held[tenant] == 0 {
		delete(l.held, tenant)
		delete(l.turns, tenant)
	}
}

// share takes a place back for a tenant that waits and has none, from the tenant that has the most, if that is more than an equal
// share of the slots: its last sequence in urgency goes, unless it is more urgent than the one that waits. It is asked when the
// queue's first finds no place.
func (l *Loop) share(now time.Time) {
	if len(l.departing) > 0 || now.Before(l.shareAfter) {
		return
	}
	guest, found := l.queue.Next(func(s *sequence) bool { return l.held[s.request.Tenant] > 0 || s.full() || l.awaits(s) })
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
		if l.held[s.request.Tenant] == most && s.request.Priority <= guest.request.Priority {
			l.guest, l.shareAfter = guest, now.Add(shareCost*l.comeback(s))
			l.preempt(s)
			return
		}
	}
}

// comeback is about how long the device takes to put a sequence back where it is.
func (l *Loop) comeback(s *sequence) time.Duration {
	if !l.prefill.known() {
		return l.cfg.StepTarget
	}
	cost := l.prefill.lasts(s.computed)
	if blocks := l.cache.BlocksFor(s.computed); blocks <= l.cache.FreeHost() {
		cost = min(cost, l.transfer(2*blocks))
	}
	return cost
}
