package fairqueue

import (
	"cmp"
	"slices"
)

const (
	// maxCharge bounds one charge, in tokens: far more than a sequence has.
	maxCharge = 1 << 40
	// maxVirtual bounds virtual times: maxVirtual + maxCharge fits an int64.
	maxVirtual = 1 << 62
	// minIdle is the number of tenants without waiting items that are always kept.
	minIdle = 256
	none    = -1
)

// tenant is the state of one tenant at one priority.
type tenant[T comparable] struct {
	name    string
	virtual int64       // virtual time: where it started plus the tokens charged
	charged uint64      // number of its last charge
	entries []*entry[T] // by age
}

// level holds the tenants of one priority, each in one of two lists. Invariant: virtualTime() <=
// virtual of every tenant.
type level[T comparable] struct {
	priority int32
	// the highest virtual time at which an item was removed; it only falls in rebase
	lastServed int64
	tenants    map[string]*tenant[T]
	waiting    []*tenant[T] // with items: by virtual time, then the age of their oldest item
	idle       []*tenant[T] // without items and ahead of the virtual time: by virtual time, then name
}

// virtualTime returns the virtual time at which a new tenant starts: that of the item removed last,
// but at most that of the tenant to be served next. It never falls. So a tenant that sends one item
// after another is not treated as new while it is ahead of others.
func (l *level[T]) virtualTime() int64 {
	if len(l.waiting) == 0 {
		return l.lastServed
	}
	return min(l.lastServed, l.waiting[0].virtual)
}

// addTenant adds a tenant that is in neither list yet.
func (l *level[T]) addTenant(name string) *tenant[T] {
	t := &tenant[T]{name: name, virtual: l.virtualTime()}
	l.tenants[name] = t
	return t
}

// rebase subtracts the virtual time from all times long before one overflows. Only differences
// matter.
func (l *level[T]) rebase() {
	offset := l.virtualTime()
	if offset < maxVirtual/2 {
		return
	}
	l.lastServed -= offset
	for _, t := range l.tenants {
		t.virtual -= offset
	}
}

// link puts t into its list.
func (q *Queue[T]) link(l *level[T], t *tenant[T]) {
	if len(t.entries) > 0 {
		i, _ := slices.BinarySearchFunc(l.waiting, t, byVirtualTime)
		l.waiting = slices.Insert(l.waiting, i, t)
		q.waiting++
		return
	}
	t.entries = nil
	i, _ := slices.BinarySearchFunc(l.idle, t, byVirtualTimeAndName)
	l.idle = slices.Insert(l.idle, i, t)
	q.idle++
}

// unlink removes t from its list. It must be called before a change of the sort key.
func (q *Queue[T]) unlink(l *level[T], t *tenant[T]) {
	if len(t.entries) > 0 {
		i, _ := slices.BinarySearchFunc(l.waiting, t, byVirtualTime)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		q.waiting--
		return
	}
	i, _ := slices.BinarySearchFunc(l.idle, t, byVirtualTimeAndName)
	l.idle = slices.Delete(l.idle, i, i+1)
	q.idle--
}

// forget drops the idle tenants of l that are no longer ahead of a new tenant. Beyond the bound it
// also drops those of all levels that were charged longest ago. It deletes empty levels.
func (q *Queue[T]) forget(l *level[T]) {
	for len(l.idle) > 0 && l.idle[0].virtual <= l.virtualTime() {
		q.drop(l, 0)
	}
	q.dropEmpty(l)
	for q.idle > max(minIdle, 4*q.waiting) {
		oldest, index := l, none
		for _, x := range q.levels {
			for i, t := range x.idle {
				if index == none || t.charged < oldest.idle[index].charged {
					oldest, index = x, i
				}
			}
		}
		q.drop(oldest, index)
		q.dropEmpty(oldest)
	}
}

// drop forgets the idle tenant at an index of its list.
func (q *Queue[T]) drop(l *level[T], i int) {
	delete(l.tenants, l.idle[i].name)
	l.idle = slices.Delete(l.idle, i, i+1)
	q.idle--
}

// dropEmpty deletes a level without tenants.
func (q *Queue[T]) dropEmpty(l *level[T]) {
	if len(l.tenants) == 0 {
		q.levels = slices.DeleteFunc(q.levels, func(x *level[T]) bool { return x == l })
	}
}

func byVirtualTime[T comparable](a, b *tenant[T]) int {
	return cmp.Or(cmp.Compare(a.virtual, b.virtual), older(a.entries[0], b.entries[0]))
}

func byVirtualTimeAndName[T comparable](a, b *tenant[T]) int {
	return cmp.Or(cmp.Compare(a.virtual, b.virtual), cmp.Compare(a.name, b.name))
}
