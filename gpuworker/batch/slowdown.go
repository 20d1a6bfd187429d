package batch

import (
	"math/bits"
	"slices"
	"time"
)

// slowdown bounds how much slower a tenant's sequences decode because of other tenants: n tenants share the device as if each had an
// n-th of it. A modest tenant, one with at most half of an equal part of the places, gets its tokens at least at an n-th of the pace
// that its sequences alone would have. Where the others leave it less, prompts of those wait that are not modest; as their sequences
// end, fewer of them decode, until the pace is kept.
//
// It is kept over time: what steps lasted less than they may is credit. While there is some, one step at a time may have such prompts;
// while there is none they wait, and credit grows with every step. Debt is bounded, as credit is: see settle.
//
// What a tenant alone would have is known from steps that had as many rows; what is not known makes nobody wait.
type slowdown struct {
	most   time.Duration // of credit
	credit time.Duration // below 0: debt
	// alone is how long steps last that only decode, by the bit length of their rows less one: 1, 2, 3 to 4, 5 to 8 and so on.
	alone [33]time.Duration
	own   map[string]work // what a step has, by tenant; used again

	heldBack int       // sequences whose prompts wait for modest tenants since the last round
	looked   time.Time // when that was
}

// work is what a step has of a tenant: sequences that decode, and tokens of prompts.
type work struct{ rows, prompt int }

// learn takes in a step that only decoded so many rows.
func (d *slowdown) learn(rows int, took time.Duration) {
	known := &d.alone[bits.Len(uint(rows-1))]
	if *known == 0 {
		*known = took
	}
	*known += (took - *known) / 8
}

// weigh takes in a step that has ended.
func (l *Loop) weigh(f *flight, took time.Duration) {
	d := &l.slowdown
	if f.decode > 0 && f.decode == f.tokens {
		d.learn(f.decode, took)
	}
	n := len(l.held)
	if n < 2 {
		d.credit = 0
		return
	}
	clear(d.own)
	for _, p := range f.parts {
		own := d.own[p.seq.request.Tenant]
		if p.decodes {
			own.rows++
		} else {
			own.prompt += p.count
		}
		d.own[p.seq.request.Tenant] = own
	}
	modest, prompts, allowed := false, false, time.Duration(0)
	for tenant, own := range d.own {
		if !l.modest(tenant) {
			prompts = prompts || own.prompt > 0
			continue
		}
		modest = true
		if may := l.lasts(own) * time.Duration(n); may > 0 && (allowed == 0 || may < allowed) {
			allowed = may
		}
	}
	switch {
	case allowed > 0:
		d.settle(allowed, took, prompts)
	case modest: // and nobody knows what it would have alone
		d.credit = d.most
	default: // the first step of one that comes has its prompt alone
		d.credit = 0
	}
}

// settle adds a step that took the time took and had the time allowed. prompts reports whether it had prompts of the crowd.
//
// Sequences that decode cannot be slowed, so the debt that they make ends at two SharedTargets: otherwise a crowd that decodes for a
// minute leaves a debt that only the modest tenant's own steps pay back, and prompts wait for minutes on a device that is nearly idle.
// A step that has prompts is owed whole, because prompts could have waited. The debt is at most that of the longest of those steps.
func (d *slowdown) settle(allowed, took time.Duration, prompts bool) {
	floor := -2 * d.most
	if prompts {
		floor = min(floor, allowed-took)
	}
	floor = min(floor, d.credit) // a step that decodes does not forgive what prompts owe
	d.credit = max(min(d.credit+allowed-took, d.most), floor)
}

// lasts is how long a step lasts that has nothing else; 0: not known.
func (l *Loop) lasts(w work) (took time.Duration) {
	if w.rows > 0 {
		if took = l.slowdown.alone[bits.Len(uint(w.rows-1))]; took == 0 {
			return 0
		}
	}
	if w.prompt > 0 && l.prefill.known() {
		took += l.prefill.lasts(w.prompt)
	}
	return took
}

// holdBack notes how many sequences have prompts that wait for modest tenants from now on.
func (l *Loop) holdBack(sequences int, now time.Time) {
	d := &l.slowdown
	if d.heldBack > 0 {
		l.counters.heldBackTime.Add(int64(d.heldBack) * int64(now.Sub(d.looked)))
	}
	d.heldBack, d.looked = sequences, now
	l.counters.heldBack.Store(int64(sequences))
}

// modest says whether a tenant has at most half of an equal part of the places: who has about as much as others waits for nobody.
func (l *Loop) modest(tenant string) bool {
	return 2*l.held[tenant]*len(l.held) <= len(l.running)+len(l.departing)
}

// guarded is the highest priority of the sequences of modest tenants that want a part of the round being planned, whose decoding
// sequences are chosen, where prompts of the others have to wait for them; false: nobody has to.
func (l *Loop) guarded(prompts []*sequence) (priority int32, ok bool) {
	credit := l.slowdown.credit > 0 && !slices.ContainsFunc(l.flights, func(f *flight) bool { return f.tokens > f.decode })
	if credit || len(l.held) < 2 {
		return 0, false
	}
	guard := func(s *sequence) {
		if r := s.request; l.modest(r.Tenant) && (!ok || r.Priority > priority) {
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
