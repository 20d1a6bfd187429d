package batch

import (
	"math/bits"
	"slices"
	"time"
)

// tenantGuard bounds how much one tenant slows another tenant's decoding. With n tenants, each
// should get the speed that it would have on an n-th of the device. The guard protects tenants
// under their fair share, which hold at most half of an equal part of the slots: their tokens come
// at least at an n-th of the speed they would have alone. While other tenants leave them less,
// prompts of those tenants are held back. As the sequences of those tenants end, fewer of them
// decode, and the speed recovers.
//
// The guarantee holds over time, by a credit account: a step that is shorter than allowed adds
// credit, a longer one spends it. While there is credit, one step at a time may contain prompts of
// tenants that are not protected. Without credit they wait. Credit and debt are bounded, see add.
//
// The speed that a tenant would have alone comes from past steps with the same number of rows.
// While it is unknown, no prompt is held back.
type tenantGuard struct {
	maxCredit time.Duration
	credit    time.Duration // negative: debt
	// soloStep is the length of decode-only steps by bits.Len(rows-1): 1, 2, 3-4, 5-8 rows and so
	// on.
	soloStep  [33]time.Duration
	perTenant map[string]work // of one step; scratch

	heldBack      int       // sequences whose prompts are held back since the last round
	heldBackSince time.Time // time of that round
}

// work is one tenant's part of a step: decode rows and prompt tokens.
type work struct{ rows, prompt int }

// learn records the length of a step with this number of decode rows and nothing else.
func (g *tenantGuard) learn(rows int, took time.Duration) {
	step := &g.soloStep[bits.Len(uint(rows-1))]
	if *step == 0 {
		*step = took
	}
	*step += (took - *step) / 8
}

// account books a finished step against the credit of the guard.
func (l *Loop) account(f *flight, took time.Duration) {
	g := &l.guard
	if f.decode > 0 && f.decode == f.tokens {
		g.learn(f.decode, took)
	}
	n := len(l.held)
	if n < 2 {
		g.credit = 0
		return
	}
	clear(g.perTenant)
	for _, p := range f.parts {
		w := g.perTenant[p.seq.request.Tenant]
		if p.decodes {
			w.rows += p.count
		} else {
			w.prompt += p.count
		}
		g.perTenant[p.seq.request.Tenant] = w
	}
	underShare, prompts, allowed := false, false, time.Duration(0)
	for tenant, w := range g.perTenant {
		if !l.underFairShare(tenant) {
			prompts = prompts || w.prompt > 0
			continue
		}
		underShare = true
		if may := l.soloTime(w) * time.Duration(n); may > 0 && (allowed == 0 || may < allowed) {
			allowed = may
		}
	}
	switch {
	case allowed > 0:
		g.add(allowed, took, prompts)
	case underShare: // the speed alone is unknown
		g.credit = g.maxCredit
	// No protected tenant computes. Without credit, the first step of one that arrives has its
	// prompt alone.
	default:
		g.credit = 0
	}
}

// add books a step that took this long and was allowed that long. prompts reports whether it
// contained prompts of tenants that are not protected.
//
// Debt from decoding is limited to two SharedTargets, because decoding sequences cannot be slowed
// down. Otherwise a crowd that decodes for a minute would leave a debt that only the protected
// tenant's own steps pay back, and prompts would wait for minutes on a nearly idle device. A step
// with prompts is booked whole, because its prompts could have waited. Such debt is at most the
// longest of those steps.
func (g *tenantGuard) add(allowed, took time.Duration, prompts bool) {
	floor := -2 * g.maxCredit
	if prompts {
		floor = min(floor, allowed-took)
	}
	floor = min(floor, g.credit) // a decode-only step must not forgive debt from prompts
	g.credit = max(min(g.credit+allowed-took, g.maxCredit), floor)
}

// soloTime is how long a step with only this work takes; 0: unknown.
func (l *Loop) soloTime(w work) (took time.Duration) {
	if w.rows > 0 {
		if took = l.guard.soloStep[bits.Len(uint(w.rows-1))]; took == 0 {
			return 0
		}
	}
	if w.prompt > 0 && l.prefill.known() {
		took += l.prefill.duration(w.prompt)
	}
	return took
}

// recordHeldBack records how many sequences have prompts that are held back from now on.
func (l *Loop) recordHeldBack(sequences int, now time.Time) {
	g := &l.guard
	if g.heldBack > 0 {
		l.counters.heldBackTime.Add(int64(g.heldBack) * int64(now.Sub(g.heldBackSince)))
	}
	g.heldBack, g.heldBackSince = sequences, now
	l.counters.heldBack.Store(int64(sequences))
}

// underFairShare reports whether a tenant holds at most half of an equal part of the slots. Half,
// because tenants of about equal size must not hold each other's prompts back.
func (l *Loop) underFairShare(tenant string) bool {
	return 2*l.held[tenant]*len(l.held) <= len(l.running)+len(l.departing)
}

// guardedPriority returns the highest priority among the protected tenants' sequences that are in
// the step or want to be, if prompts of other tenants must wait for them. It returns false if there
// is credit or no tenant to protect.
func (l *Loop) guardedPriority(prompts []*sequence) (priority int32, ok bool) {
	credit := l.guard.credit > 0 && !slices.ContainsFunc(l.flights, func(f *flight) bool { return f.tokens > f.decode })
	if credit || len(l.held) < 2 {
		return 0, false
	}
	guard := func(s *sequence) {
		if r := s.request; l.underFairShare(r.Tenant) && (!ok || r.Priority > priority) {
			priority, ok = r.Priority, true
		}
	}
	for _, p := range l.plan.chosen {
		guard(p.seq)
	}
	for _, s := range prompts {
		if l.plannable(s) {
			guard(s)
		}
	}
	return priority, ok
}
