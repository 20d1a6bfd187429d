package batch

import (
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
