package admission

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/fairqueue"
)

// ageZero is the age of what came when the queue was first used; what came before, elsewhere, is older.
const ageZero = 1 << 62

// queue is what waits for places of one model. It is pure: the time is given in, and who places an item is asked through a function.
// One goroutine at a time uses it.
type queue struct {
	onDemand bool          // a refusal that a load would help is given, at once or after the grace
	most     int           // items beyond which no newcomer waits, those that resume aside
	longest  time.Duration // for which an item waits, those that resume aside; 0: as long as its caller does

	begun    time.Time              // from which ages in order count
	resuming []*item                // by age
	order    fairqueue.Queue[*item] // the others
	tenants  map[class]*tenant
	away     time.Time // since when no worker serves the model; zero: one does, or nobody has asked
	outflow  outflow
	stats    counts
}

// tenant is what of one tenant waits at one priority.
type tenant struct {
	items, prompt int64
	held          int64 // of items, those that had a place before: no newcomer takes theirs
}

// count counts an item in, n 1, or out, n -1.
func (t *tenant) count(i *item, n int64) {
	t.items += n
	t.prompt += n * i.request.Prompt
	if i.held() {
		t.held += n
	}
}

// len is how many items wait.
func (q *queue) len() int { return q.order.Len() + len(q.resuming) }

// push takes an item in, or says why not. In a full queue another may lose its place to it. prefillRate is the prompt tokens that the
// model's workers compute a second, as far as they have measured it.
func (q *queue) push(i *item, prefillRate float64, now time.Time) error {
	i.since = now
	if q.len() == 0 {
		q.away = time.Time{}
		q.outflow.begin(now)
	}
	if q.begun.IsZero() {
		q.begun = now
	}
	if i.request.Resumes {
		at, _ := slices.BinarySearchFunc(q.resuming, i, func(a, b *item) int { return cmp.Or(a.age().Compare(b.age()), -1) })
		q.resuming = slices.Insert(q.resuming, at, i)
		return nil
	}
	if q.longest > 0 {
		i.until = now.Add(q.longest)
	}
	if !i.held() {
		if err := q.admit(i, prefillRate, now); err != nil {
			return err
		}
	}
	q.order.Push(i, i.class(), uint64(i.age().Sub(q.begun)+ageZero))
	t := q.tenants[i.class()]
	if t == nil {
		if q.tenants == nil {
			q.tenants = map[class]*tenant{}
		}
		t = &tenant{}
		q.tenants[i.class()] = t
	}
	t.count(i, 1)
	return nil
}

// admit makes room for a newcomer, or says why not.
func (q *queue) admit(i *item, prefillRate float64, now time.Time) error {
	if wait, known := q.wait(i, prefillRate, now); known && !i.deadline.IsZero() && now.Add(wait).After(i.deadline) {
		q.stats.late++
		return tooLate(i, wait, now)
	}
	if q.order.Len() >= q.most {
		last := q.leastUrgent(i)
		if last == nil {
			q.stats.shed++
			return q.full(i, now)
		}
		last.granted <- grant{err: q.displaced(last, now)}
		q.remove(last)
		q.stats.displaced++
	}
	return nil
}

// leastUrgent is who loses the place in a full queue to a newcomer: the last of the lowest priority, if the newcomer's is higher;
// else the last of a tenant that has more waiting at the newcomer's priority than the newcomer's would have. nil: the newcomer itself.
func (q *queue) leastUrgent(i *item) *item {
	newcomer := i.class()
	own := int64(1)
	if t := q.tenants[newcomer]; t != nil {
		own += t.items
	}
	lowest, found := newcomer, false
	var items int64
	for c, t := range q.tenants {
		switch {
		case c.Priority > newcomer.Priority, t.items == t.held:
			continue
		case c.Priority == newcomer.Priority && t.items <= own:
			continue
		case !found || c.Priority < lowest.Priority ||
			c.Priority == lowest.Priority && (t.items > items || t.items == items && c.Tenant > lowest.Tenant):
			lowest, items, found = c, t.items, true
		}
	}
	if !found {
		return nil
	}
	var last *item
	for x := range q.order.Each {
		if x.class() == lowest && !x.held() {
			last = x
		}
	}
	return last
}

// remove takes an item out; false: it is not there.
func (q *queue) remove(i *item) bool {
	if i.request.Resumes {
		at := slices.Index(q.resuming, i)
		if at >= 0 {
			q.resuming = slices.Delete(q.resuming, at, at+1)
		}
		return at >= 0
	}
	if !q.order.Remove(i) {
		return false
	}
	t := q.tenants[i.class()]
	t.count(i, -1)
	if t.items == 0 {
		delete(q.tenants, i.class())
	}
	return true
}

// leave takes out an item whose caller waits no more; false: it is not there.
func (q *queue) leave(i *item) bool {
	if !q.remove(i) {
		return false
	}
	q.stats.left++
	return true
}

// expire takes out an item whose time is over, and is its refusal; nil: it is not there, and was granted something.
func (q *queue) expire(i *item, now time.Time) error {
	if !q.remove(i) {
		return nil
	}
	q.stats.expired++
	return q.timedOut(i, now)
}

// each yields the items in order, those that resume first.
func (q *queue) each(yield func(*item) bool) {
	for _, i := range q.resuming {
		if !yield(i) {
			return
		}
	}
	q.order.Each(yield)
}

// settle makes the tenant of a request that has ended pay for the tokens that it took: for those beyond what it was taken to need, and
// not for those that it was charged and were not computed.
func (q *queue) settle(l *Lease) {
	q.order.Charge(l.class, int(l.beyond))
	if l.charged {
		q.order.Refund(l.class, int(l.left))
	}
}
