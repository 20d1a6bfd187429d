package fairqueue

import (
	"cmp"
	"slices"
)

const (
	// mostCharge bounds one charge, in tokens: far more than a sequence has.
	mostCharge = 1 << 40
	// mostVirtual bounds virtual times: mostVirtual + mostCharge fits an int64.
	mostVirtual = 1 << 62
	// leastIdle is how many tenants that have nothing waiting are remembered in any case.
	leastIdle = 256
	none      = -1
)

// tenant is one tenant's state at one priority.
type tenant[T comparable] struct {
	name    string
	virtual int64       // tokens charged, and the virtual time at which it began
	charged uint64      // when it was charged last, counted in charges
	entries []*entry[T] // by age
}

// level is the tenants of one priority, each in one of two lists. present() <= virtual of every tenant.
type level[T comparable] struct {
	priority int32
	now      int64 // the highest virtual time at which an item was taken out: it never falls, but all times may be shifted together
	tenants  map[string]*tenant[T]
	waiting  []*tenant[T] // that have items: by virtual time, then the age of their oldest item
	idle     []*tenant[T] // that have none, and used more than others: by virtual time, then name
}

// present is the virtual time at which a newcomer begins: that at which the item being served was taken out, and never beyond that
// of the tenant to be served next. It never falls. A tenant of one item after another is therefore not taken for a newcomer while
// what it was charged for the last one is more than others have had.
func (l *level[T]) present() int64 {
	if len(l.waiting) == 0 {
		return l.now
	}
	return min(l.now, l.waiting[0].virtual)
}

// newcomer is a tenant in neither list yet.
func (l *level[T]) newcomer(name string) *tenant[T] {
	t := &tenant[T]{name: name, virtual: l.present()}
	l.tenants[name] = t
	return t
}

// shift takes the present from all virtual times long before one overflows: only their differences mean something.
func (l *level[T]) shift() {
	by := l.present()
	if by < mostVirtual/2 {
		return
	}
	l.now -= by
	for _, t := range l.tenants {
		t.virtual -= by
	}
}

// list puts t into the list where it belongs.
func (q *Queue[T]) list(l *level[T], t *tenant[T]) {
	if len(t.entries) > 0 {
		at, _ := slices.BinarySearchFunc(l.waiting, t, sooner)
		l.waiting = slices.Insert(l.waiting, at, t)
		q.waiting++
		return
	}
	t.entries = nil
	at, _ := slices.BinarySearchFunc(l.idle, t, lighter)
	l.idle = slices.Insert(l.idle, at, t)
	q.idle++
}

// unlist takes t out of its list, before something changes by which the list is sorted.
func (q *Queue[T]) unlist(l *level[T], t *tenant[T]) {
	if len(t.entries) > 0 {
		at, _ := slices.BinarySearchFunc(l.waiting, t, sooner)
		l.waiting = slices.Delete(l.waiting, at, at+1)
		q.waiting--
		return
	}
	at, _ := slices.BinarySearchFunc(l.idle, t, lighter)
	l.idle = slices.Delete(l.idle, at, at+1)
	q.idle--
}

// forget drops the idle tenants of l that would begin anew where they are, then, of all, those charged longest ago while there are
// more than the waiting ones account for. A level without tenants goes too.
func (q *Queue[T]) forget(l *level[T]) {
	for len(l.idle) > 0 && l.idle[0].virtual <= l.present() {
		q.drop(l, 0)
	}
	q.tidy(l)
	for q.idle > max(leastIdle, 4*q.waiting) {
		oldest, at := l, none
		for _, x := range q.levels {
			for i, t := range x.idle {
				if at == none || t.charged < oldest.idle[at].charged {
					oldest, at = x, i
				}
			}
		}
		q.drop(oldest, at)
		q.tidy(oldest)
	}
}

// drop forgets the idle tenant at a place of its list.
func (q *Queue[T]) drop(l *level[T], at int) {
	delete(l.tenants, l.idle[at].name)
	l.idle = slices.Delete(l.idle, at, at+1)
	q.idle--
}

// tidy takes a level without tenants away: nobody is there to compare with.
func (q *Queue[T]) tidy(l *level[T]) {
	if len(l.tenants) == 0 {
		q.levels = slices.DeleteFunc(q.levels, func(x *level[T]) bool { return x == l })
	}
}

func sooner[T comparable](a, b *tenant[T]) int {
	return cmp.Or(cmp.Compare(a.virtual, b.virtual), older(a.entries[0], b.entries[0]))
}

func lighter[T comparable](a, b *tenant[T]) int {
	return cmp.Or(cmp.Compare(a.virtual, b.virtual), cmp.Compare(a.name, b.name))
}
