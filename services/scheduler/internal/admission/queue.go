package admission

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/fairqueue"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// maxTried is how many waiters a dispatch tries, at most, to find one for a slot that those before
	// it cannot use.
	maxTried = 32
	// ageZero is the age, in the order, of a request that arrives when the queue is first used. A call
	// that arrived before that, and lost its slot, is older.
	ageZero = 1 << 62
)

// errRemoved means that a queue was removed from Admission.queues: the caller must get it again.
var errRemoved = errors.New("the queue was removed")

// modelQueue is the queue of one model. Its counts can be read without its lock, so that a request
// for which a slot is free never blocks on the queue.
type modelQueue struct {
	admission *Admission
	model     string
	// waiting is how many requests wait, resuming how many of them resume. Both are raised before a
	// waiter looks for a slot. So a lease that ends either sees the waiter, or ended early enough for
	// the waiter to find its slot.
	waiting, resuming atomic.Int64
	placed            atomic.Uint64

	mu struct {
		sync.Mutex
		queue   queue
		removed bool // from Admission.queues, see unlock
	}
}

// push adds a request, unless the queue sheds it.
func (q *modelQueue) push(w *waiter, prefillRate float64, now time.Time) error {
	q.mu.Lock()
	defer q.unlock()
	if q.mu.removed {
		return errRemoved
	}
	return q.mu.queue.push(w, prefillRate, now)
}

// wait blocks until a request is granted a slot, is refused, or its caller is gone.
func (q *modelQueue) wait(ctx context.Context, w *waiter) (*Lease, error) {
	q.dispatch()
	var timeout <-chan time.Time
	if !w.until.IsZero() {
		timer := time.NewTimer(time.Until(w.until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case g := <-w.granted:
		return g.lease, g.err
	case <-timeout:
		return q.withdraw(w, nil)
	case <-ctx.Done():
		return q.withdraw(w, context.Cause(ctx))
	}
}

// withdraw removes a request, because its caller is gone (cause), or because it has waited for too
// long (nil). If it was granted a slot in the meantime, withdraw returns that lease, or ends it if
// its caller is gone.
func (q *modelQueue) withdraw(w *waiter, cause error) (*Lease, error) {
	q.mu.Lock()
	removed, err := q.mu.queue.withdraw(w, cause, time.Now())
	q.unlock()
	if !removed {
		g := <-w.granted
		if cause == nil {
			return g.lease, g.err
		}
		if g.lease != nil {
			g.lease.End()
		}
	}
	q.dispatch() // waiters behind it may have waited for it
	return nil, err
}

// dispatch grants free slots to waiters. again is when it must be called again; zero: not because
// of the time.
func (q *modelQueue) dispatch() (again time.Time) {
	if q.waiting.Load() == 0 {
		return again
	}
	q.mu.Lock()
	defer q.unlock()
	return q.mu.queue.dispatch(time.Now(), q.admission.grace, q.admission.acquire)
}

// unlock publishes the counts after a change and unlocks the queue. It removes the queue if that is
// empty and has never placed a request: its model may not exist, and callers that make up names
// must not fill the memory.
func (q *modelQueue) unlock() {
	q.waiting.Store(int64(q.mu.queue.len()))
	q.resuming.Store(int64(len(q.mu.queue.resuming)))
	if q.mu.queue.len() == 0 && q.placed.Load() == 0 {
		q.mu.removed = true
		q.admission.queues.CompareAndDelete(q.model, q)
	}
	q.mu.Unlock()
}

// queue holds the requests that wait for slots of one model. It is the pure core of admission: time
// is passed in, and slots are acquired through a function. It is not safe for concurrent use.
type queue struct {
	onDemand bool          // whether the caller of Place loads models, see OnDemand
	most     int           // waiters beyond which no newcomer may wait, not counting those that resume
	longest  time.Duration // how long a request may wait, unless it resumes; 0: as long as its caller does

	begun       time.Time                // when the queue was first used, as the origin of ages
	resuming    []*waiter                // by age
	order       fairqueue.Queue[*waiter] // the others
	tenants     map[class]*tenant
	absentSince time.Time // since when no worker serves the model; zero: one does, or no waiter was tried
	drain       drainRate
	stats       counts
}

// tenant counts the waiters of one tenant at one priority.
type tenant struct {
	waiters, prompt int64
	hadSlot         int64 // of waiters, those that had a slot before: a newcomer cannot displace them
}

// add counts a waiter in (n = 1) or out (n = -1).
func (t *tenant) add(w *waiter, n int64) {
	t.waiters += n
	t.prompt += n * w.request.Prompt
	if w.hadSlot() {
		t.hadSlot += n
	}
}

// len returns how many requests wait.
func (q *queue) len() int { return q.order.Len() + len(q.resuming) }

// push adds a request, unless it must be shed. A full queue may displace another waiter for it.
// prefillRate is the prompt tokens a second that the model's workers have measured.
func (q *queue) push(w *waiter, prefillRate float64, now time.Time) error {
	w.since = now
	if q.len() == 0 {
		q.absentSince = time.Time{}
		q.drain.restart(now)
	}
	if q.begun.IsZero() {
		q.begun = now
	}
	if w.request.Resumes {
		i, _ := slices.BinarySearchFunc(q.resuming, w, func(a, b *waiter) int { return cmp.Or(a.arrived().Compare(b.arrived()), -1) })
		q.resuming = slices.Insert(q.resuming, i, w)
		return nil
	}
	if q.longest > 0 {
		w.until = now.Add(q.longest)
	}
	if !w.hadSlot() {
		if err := q.admit(w, prefillRate, now); err != nil {
			return err
		}
	}
	q.order.Push(w, w.class(), uint64(w.arrived().Sub(q.begun)+ageZero))
	t := q.tenants[w.class()]
	if t == nil {
		if q.tenants == nil {
			q.tenants = map[class]*tenant{}
		}
		t = &tenant{}
		q.tenants[w.class()] = t
	}
	t.add(w, 1)
	return nil
}

// dispatch grants slots in order until no waiter can use one. acquire leases a slot for a waiter;
// its error is that of route.Pick. A waiter whose model has no worker waits until grace has passed.
// again is when dispatch must be called again for that; zero: not because of the time.
func (q *queue) dispatch(now time.Time, grace time.Duration, acquire func(*waiter) (*Lease, error)) (again time.Time) {
	for q.len() > 0 {
		var done *waiter
		done, again = q.dispatchOne(now, grace, acquire)
		if done == nil {
			return again
		}
	}
	return time.Time{}
}

// dispatchOne grants a slot to, or refuses, the first waiter in order for which that is possible.
func (q *queue) dispatchOne(now time.Time, grace time.Duration, acquire func(*waiter) (*Lease, error)) (done *waiter, again time.Time) {
	var skipped []*waiter // before done, in order
	var failed []*waiter  // of them, those that were tried
	var result grant
	for w := range q.each {
		if f := sameFailure(w, failed); f != nil {
			skipped = append(skipped, w)
			if w.absentSince.IsZero() {
				w.absentSince = f.absentSince
			}
			continue
		}
		if len(failed) == maxTried {
			break
		}
		lease, err := acquire(w)
		if err == nil {
			q.absentSince = time.Time{}
			done, result = w, grant{lease: lease}
			break
		}
		w.full, w.tooLarge = errors.Is(err, route.ErrWorkersFull), errors.Is(err, route.ErrTooLarge)
		if until, waits := q.mayWait(w, err, now, grace); !waits {
			done, result = w, grant{err: err}
			break
		} else if !until.IsZero() && (again.IsZero() || until.Before(again)) {
			again = until
		}
		skipped, failed = append(skipped, w), append(failed, w)
		// A request that any worker could serve found all of them full: no later one finds a slot.
		allFull := w.full && w.reach == 0 && !w.request.Pinned()
		// Others have overtaken it often enough. The next slots are collected for it.
		overdue := w.overtaken >= maxOvertaken && (w.full || w.tooLarge)
		if allFull || overdue {
			return nil, again
		}
	}
	if done == nil {
		return nil, again
	}
	q.remove(done)
	if result.lease != nil {
		countOvertaken(skipped, done, &result.lease.choice)
		result.lease.charged = q.charge(done, now)
	}
	done.granted <- result
	return done, again
}

// mayWait reports whether a waiter for which no slot was found goes on waiting, and until when;
// zero: as long as its caller does.
func (q *queue) mayWait(w *waiter, err error, now time.Time, grace time.Duration) (until time.Time, waits bool) {
	if w.full || w.tooLarge {
		q.absentSince, w.absentSince = time.Time{}, time.Time{}
		return time.Time{}, true
	}
	load := q.onDemand && route.Loadable(err) != nil
	if load && !route.Loadable(err).Returns {
		return time.Time{}, false
	}
	if w.absentSince.IsZero() {
		w.absentSince = now
	}
	noWorker := errors.Is(err, route.ErrNoWorker) || errors.Is(err, route.ErrFleetUnknown)
	switch {
	case w.request.Resumes && noWorker && !load:
		return time.Time{}, true
	case w.request.Resumes, load && w.request.Pinned(), w.mayReturn:
		until = w.absentSince.Add(grace)
	case noWorker && !w.request.Pinned():
		if q.absentSince.IsZero() {
			q.absentSince = now
		}
		until = q.absentSince.Add(grace)
	default:
		return time.Time{}, false
	}
	return until, now.Before(until)
}

// charge charges the tenant of a waiter that was granted a slot with the tokens that the request
// may need, and reports whether it did. It charges before the next waiter is chosen: otherwise one
// tenant would get all slots of a dispatch. Streams that resume are not charged, because their
// first slot was.
func (q *queue) charge(w *waiter, now time.Time) (charged bool) {
	q.stats.waited(now.Sub(w.since))
	if w.request.Resumes {
		return false
	}
	q.order.Charge(w.class(), int(w.request.Tokens))
	q.drain.note(w.request.Prompt, now)
	return true
}

// settle corrects the charge of a lease that has ended: its tenant pays for the tokens that were
// computed, and not for those that the request was estimated to need.
func (q *queue) settle(l *Lease) {
	q.order.Charge(l.class, int(l.excess))
	if l.charged {
		q.order.Refund(l.class, int(l.left))
	}
}

// withdraw removes a waiter whose caller is gone (cause), or that has waited for too long (nil).
// The error is that of its call. removed is false if it was granted a slot or refused before.
func (q *queue) withdraw(w *waiter, cause error, now time.Time) (removed bool, err error) {
	if !q.remove(w) {
		return false, cause
	}
	if cause != nil {
		q.stats.left++
		return true, cause
	}
	q.stats.expired++
	return true, q.timedOut(w, now)
}

// remove removes a waiter and reports whether it was in the queue.
func (q *queue) remove(w *waiter) bool {
	if w.request.Resumes {
		i := slices.Index(q.resuming, w)
		if i >= 0 {
			q.resuming = slices.Delete(q.resuming, i, i+1)
		}
		return i >= 0
	}
	if !q.order.Remove(w) {
		return false
	}
	t := q.tenants[w.class()]
	t.add(w, -1)
	if t.waiters == 0 {
		delete(q.tenants, w.class())
	}
	return true
}

// each yields the waiters in order, those that resume first.
func (q *queue) each(yield func(*waiter) bool) {
	for _, w := range q.resuming {
		if !yield(w) {
			return
		}
	}
	q.order.Each(yield)
}
