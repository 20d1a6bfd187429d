package fairqueue

import (
	"cmp"
	"slices"
)

// Flow is the pair by which items are queued and charged.
type Flow struct {
	Priority int32  // higher is served first
	Tenant   string // whose share is used; "" is a tenant like others
}

// entry is a waiting item.
type entry[T comparable] struct {
	item  T
	flow  Flow
	age   uint64
	order uint64 // order of arrival, for items of equal age
}

// Queue holds waiting items. The zero value is empty and ready. An item is in it at most once.
//
// Lists are sorted slices with binary search. An operation costs O(log n) comparisons, and moves at
// most the pointers of one tenant's items or of one priority's tenants. Removing the oldest item of
// a tenant moves none of its others.
type Queue[T comparable] struct {
	items   map[T]*entry[T]
	levels  []*level[T] // by priority, the highest first
	orders  uint64
	charges uint64
	waiting int // tenants in the waiting lists of all levels
	idle    int // tenants in the idle lists of all levels
}

// Len returns the number of waiting items.
func (q *Queue[T]) Len() int { return len(q.items) }

// Push adds an item. age grows with the time of arrival, so a lower age is older. Push returns
// false, and changes nothing, if the item is in the queue.
func (q *Queue[T]) Push(item T, flow Flow, age uint64) bool {
	if _, ok := q.items[item]; ok {
		return false
	}
	if q.items == nil {
		q.items = map[T]*entry[T]{}
	}
	q.orders++
	e := &entry[T]{item: item, flow: flow, age: age, order: q.orders}
	q.items[item] = e
	l := q.level(flow.Priority)
	t := l.tenants[flow.Tenant]
	switch {
	case t == nil:
		t = l.addTenant(flow.Tenant)
	default:
		q.unlink(l, t)
	}
	i, _ := slices.BinarySearchFunc(t.entries, e, older)
	t.entries = slices.Insert(t.entries, i, e)
	q.link(l, t)
	return true
}

// Remove removes an item that is served or cancelled. It returns false if the item is not in the
// queue. Its tenant keeps its charges.
func (q *Queue[T]) Remove(item T) bool {
	e, ok := q.items[item]
	if !ok {
		return false
	}
	delete(q.items, item)
	l := q.level(e.flow.Priority)
	t := l.tenants[e.flow.Tenant]
	q.unlink(l, t)
	l.lastServed = max(l.lastServed, t.virtual)
	if i, _ := slices.BinarySearchFunc(t.entries, e, older); i == 0 {
		t.entries[0] = nil
		t.entries = t.entries[1:]
	} else {
		t.entries = slices.Delete(t.entries, i, i+1)
	}
	q.link(l, t)
	q.forget(l)
	return true
}

// Next returns the first item for which skip is false. A nil skip skips none. The item stays in the
// queue.
func (q *Queue[T]) Next(skip func(T) bool) (item T, found bool) {
	for x := range q.Each {
		if skip == nil || !skip(x) {
			return x, true
		}
	}
	return item, false
}

// Each yields the items in the order in which Next would return them without charges: by priority,
// then tenant by tenant in order of virtual time, then by age. The queue must not change during the
// iteration.
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

// Oldest returns the item of the lowest age at any priority.
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

// Charge adds tokens to the virtual time of a tenant at a priority, whether or not it has waiting
// items. If nothing waits at that priority, the level's virtual time follows, so the charge does
// not count against the tenant later.
func (q *Queue[T]) Charge(flow Flow, tokens int) {
	if tokens <= 0 {
		return
	}
	l := q.level(flow.Priority)
	t := l.tenants[flow.Tenant]
	if t == nil {
		t = l.addTenant(flow.Tenant)
	} else {
		q.unlink(l, t)
	}
	q.charges++
	t.charged = q.charges
	t.virtual = min(t.virtual+min(int64(tokens), maxCharge), maxVirtual)
	q.link(l, t)
	if len(l.waiting) == 0 {
		l.lastServed = max(l.lastServed, t.virtual)
	}
	l.rebase()
	q.forget(l)
}

// Refund subtracts tokens that a tenant was charged and did not use, down to the level's virtual
// time, because unused share does not accumulate. It does nothing for a tenant that is forgotten.
func (q *Queue[T]) Refund(flow Flow, tokens int) {
	i, found := slices.BinarySearchFunc(q.levels, flow.Priority, byPriority[T])
	if tokens <= 0 || !found {
		return
	}
	l := q.levels[i]
	t := l.tenants[flow.Tenant]
	if t == nil {
		return
	}
	minimum := l.virtualTime()
	q.unlink(l, t)
	t.virtual = max(t.virtual-min(int64(tokens), maxCharge), minimum)
	q.link(l, t)
	q.forget(l)
}

// level returns the level of a priority. It adds one if none exists.
func (q *Queue[T]) level(priority int32) *level[T] {
	i, found := slices.BinarySearchFunc(q.levels, priority, byPriority[T])
	if !found {
		q.levels = slices.Insert(q.levels, i, &level[T]{priority: priority, tenants: map[string]*tenant[T]{}})
	}
	return q.levels[i]
}

// byPriority orders levels, the highest priority first.
func byPriority[T comparable](l *level[T], priority int32) int {
	return cmp.Compare(priority, l.priority)
}

func older[T comparable](a, b *entry[T]) int {
	return cmp.Or(cmp.Compare(a.age, b.age), cmp.Compare(a.order, b.order))
}
