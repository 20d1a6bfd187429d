package fairqueue

import (
	"cmp"
	"slices"
)

// Class is where an item stands.
type Class struct {
	Priority int32  // higher is served first
	Tenant   string // whose share serving it uses; the empty name is a tenant like others
}

// entry is one item that waits.
type entry[T comparable] struct {
	item  T
	class Class
	age   uint64
	order uint64 // of arrival in this queue: it tells items of one age apart
}

// Queue holds items that wait. The zero value is empty and ready. An item is in it once.
//
// Lists are sorted slices, found in by halving: an operation costs O(log n) comparisons, and moves at most the pointers of one
// tenant's items or of one priority's tenants. Taking the oldest item of a tenant moves none of its others.
type Queue[T comparable] struct {
	items   map[T]*entry[T]
	levels  []*level[T] // by priority, the highest first
	orders  uint64
	charges uint64
	waiting int // tenants in the waiting lists of all levels
	idle    int // tenants in the idle lists of all levels
}

// Len is how many items wait.
func (q *Queue[T]) Len() int { return len(q.items) }

// Push takes an item in. The lower its age, a number that grows with the time of arrival, the older it is. It returns false, and
// has changed nothing, if the item waits already.
func (q *Queue[T]) Push(item T, class Class, age uint64) bool {
	if _, there := q.items[item]; there {
		return false
	}
	if q.items == nil {
		q.items = map[T]*entry[T]{}
	}
	q.orders++
	e := &entry[T]{item: item, class: class, age: age, order: q.orders}
	q.items[item] = e
	l := q.level(class.Priority)
	t := l.tenants[class.Tenant]
	switch {
	case t == nil:
		t = l.newcomer(class.Tenant)
	default:
		q.unlist(l, t)
	}
	at, _ := slices.BinarySearchFunc(t.entries, e, older)
	t.entries = slices.Insert(t.entries, at, e)
	q.list(l, t)
	return true
}

// Remove takes an item out, because it is going to be served or has gone away; false means that it is not there. Its tenant keeps
// what it was charged.
func (q *Queue[T]) Remove(item T) bool {
	e, there := q.items[item]
	if !there {
		return false
	}
	delete(q.items, item)
	l := q.level(e.class.Priority)
	t := l.tenants[e.class.Tenant]
	q.unlist(l, t)
	l.now = max(l.now, t.virtual)
	if at, _ := slices.BinarySearchFunc(t.entries, e, older); at == 0 {
		t.entries[0] = nil
		t.entries = t.entries[1:]
	} else {
		t.entries = slices.Delete(t.entries, at, at+1)
	}
	q.list(l, t)
	q.forget(l)
	return true
}

// Next is the first item in order for which skip is false; nil skips none. It stays where it is.
func (q *Queue[T]) Next(skip func(T) bool) (item T, found bool) {
	for x := range q.Each {
		if skip == nil || !skip(x) {
			return x, true
		}
	}
	return item, false
}

// Each yields the items in the order in which Next would take them if nobody were charged: by priority, then tenant after tenant,
// the one charged least first, then by age. The queue is not changed meanwhile.
func (q *Queue[T]) Each(yield func(T) bool) {
	for _, l := range q.levels {
		for _, t := range l.waiting {
			for _, e := range t.entries {
				if !yield(e.item) {
					return
				}
			}
		}
	}
}

// Oldest is the item of the lowest age, whatever its priority.
func (q *Queue[T]) Oldest() (item T, found bool) {
	var oldest *entry[T]
	for _, l := range q.levels {
		for _, t := range l.waiting {
			if oldest == nil || older(t.entries[0], oldest) < 0 {
				oldest = t.entries[0]
			}
		}
	}
	if oldest == nil {
		return item, false
	}
	return oldest.item, true
}

// Charge adds tokens to what a tenant has used of the machine at a priority, whether it has items waiting or not. Where nobody
// waits at that priority, nobody had less for it, and nothing is held against the tenant.
func (q *Queue[T]) Charge(class Class, tokens int) {
	if tokens <= 0 {
		return
	}
	l := q.level(class.Priority)
	t := l.tenants[class.Tenant]
	if t == nil {
		t = l.newcomer(class.Tenant)
	} else {
		q.unlist(l, t)
	}
	q.charges++
	t.charged = q.charges
	t.virtual = min(t.virtual+min(int64(tokens), mostCharge), mostVirtual)
	q.list(l, t)
	if len(l.waiting) == 0 {
		l.now = max(l.now, t.virtual)
	}
	l.shift()
	q.forget(l)
}

// Refund takes back tokens that a tenant was charged and did not use, as far as that leaves it at the present: what was not used is not
// saved up. To a tenant that is not remembered nothing is owed.
func (q *Queue[T]) Refund(class Class, tokens int) {
	at, found := slices.BinarySearchFunc(q.levels, class.Priority, byPriority[T])
	if tokens <= 0 || !found {
		return
	}
	l := q.levels[at]
	t := l.tenants[class.Tenant]
	if t == nil {
		return
	}
	least := l.present()
	q.unlist(l, t)
	t.virtual = max(t.virtual-min(int64(tokens), mostCharge), least)
	q.list(l, t)
	q.forget(l)
}

// level is that of a priority, made if there is none.
func (q *Queue[T]) level(priority int32) *level[T] {
	at, found := slices.BinarySearchFunc(q.levels, priority, byPriority[T])
	if !found {
		q.levels = slices.Insert(q.levels, at, &level[T]{priority: priority, tenants: map[string]*tenant[T]{}})
	}
	return q.levels[at]
}

// byPriority orders levels, the highest priority first.
func byPriority[T comparable](l *level[T], priority int32) int {
	return cmp.Compare(priority, l.priority)
}

func older[T comparable](a, b *entry[T]) int {
	return cmp.Or(cmp.Compare(a.age, b.age), cmp.Compare(a.order, b.order))
}
