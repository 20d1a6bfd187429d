package admission

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Sentinels of Place in addition to those of route. Each comes in a *route.Refusal with numbers.
var (
	// ErrDisplaced: the queue was full, and a more urgent request, or one of a tenant with fewer
	// waiters, displaced this one.
	ErrDisplaced = errors.New("displaced in a full queue")
	// ErrTooLate: by measured rates, the first token would come after the caller's deadline.
	ErrTooLate = errors.New("the deadline cannot be met")
	// ErrQueueTimeout: the request has waited for the longest time allowed.
	ErrQueueTimeout = errors.New("waited too long for a slot")
)

const (
	// leastRetry and mostRetry bound the delay that a refused caller is given; unknownRetry is the
	// delay without a rate.
	leastRetry, mostRetry, unknownRetry = 200 * time.Millisecond, 30 * time.Second, time.Second
	// retrySpread is over how many delays, up to twice the estimate, callers are spread that are
	// refused together. Without it they would all come back at once.
	retrySpread = 8
)

// admit decides whether a newcomer may wait. It returns a refusal if the newcomer must be shed. If
// the queue is full, it may shed another waiter instead.
func (q *queue) admit(w *waiter, prefillRate float64, now time.Time) error {
	if wait, known := q.estimate(w, prefillRate, now); known && !w.deadline.IsZero() && now.Add(wait).After(w.deadline) {
		q.stats.late++
		return tooLate(w, wait, now)
	}
	if q.order.Len() >= q.most {
		victim := q.leastUrgent(w)
		if victim == nil {
			q.stats.shed++
			return q.full(w, now)
		}
		victim.granted <- grant{err: q.displaced(victim, now)}
		q.remove(victim)
		q.stats.displaced++
	}
	return nil
}

// leastUrgent returns the waiter that a newcomer displaces in a full queue; nil: none, the newcomer
// is shed. The victim is the last waiter of the lowest priority, if the newcomer's is higher.
// Otherwise it is the last waiter of the tenant with the most waiters at the newcomer's priority,
// if these are more than the newcomer's tenant would have.
func (q *queue) leastUrgent(newcomer *waiter) *waiter {
	c := newcomer.class()
	share := int64(1) // waiters of the newcomer's tenant, with the newcomer
	if t := q.tenants[c]; t != nil {
		share += t.waiters
	}
	lowest, found := c, false
	var most int64
	for other, t := range q.tenants {
		switch {
		case other.Priority > c.Priority, t.waiters == t.hadSlot:
			continue
		case other.Priority == c.Priority && t.waiters <= share:
			continue
		case !found || other.Priority < lowest.Priority ||
			other.Priority == lowest.Priority && (t.waiters > most || t.waiters == most && other.Tenant > lowest.Tenant):
			lowest, most, found = other, t.waiters, true
		}
	}
	if !found {
		return nil
	}
	var last *waiter
	for w := range q.order.Each {
		if w.class() == lowest && !w.hadSlot() {
			last = w
		}
	}
	return last
}

// estimate returns how long a newcomer would wait until its prompt is computed: for the slots of
// the waiters before it, at the rate at which the queue drains, and for their prompt tokens and its
// own, at that rate or the one that workers have measured, whichever is higher.
func (q *queue) estimate(w *waiter, prefillRate float64, now time.Time) (wait time.Duration, known bool) {
	perRequest, perToken, known := q.drain.rates(now)
	if !known || q.len() == 0 {
		return 0, false
	}
	requests, prompt := q.ahead(w.class())
	seconds := float64(requests+1) / perRequest
	if rate := max(perToken, prefillRate); rate > 0 {
		seconds = max(seconds, float64(prompt+w.request.Prompt)/rate)
	}
	return time.Duration(min(seconds, math.MaxInt32) * float64(time.Second)), true
}

// ahead counts the waiters that are served before a newcomer: all waiters of higher priority, and
// of its own priority as many as fair queueing between the tenants allows.
func (q *queue) ahead(c class) (requests, prompt int64) {
	var all, same tenant // of the newcomer's priority; of its tenant, too
	tenants := int64(0)
	for other, t := range q.tenants {
		switch {
		case other.Priority > c.Priority:
			requests, prompt = requests+t.waiters, prompt+t.prompt
		case other.Priority == c.Priority:
			all.waiters, all.prompt = all.waiters+t.waiters, all.prompt+t.prompt
			if tenants++; other.Tenant == c.Tenant {
				same = *t
			}
		}
	}
	if same.waiters == 0 {
		tenants++
	}
	return requests + min(all.waiters, (same.waiters+1)*tenants-1), prompt + min(all.prompt, same.prompt*tenants)
}

// retryAfter returns the delay that a refused caller is given: until half of the waiters have left.
func (q *queue) retryAfter(now time.Time) time.Duration {
	perRequest, _, known := q.drain.rates(now)
	after := unknownRetry
	if known {
		after = time.Duration(min(float64(q.len())/2/perRequest, mostRetry.Seconds()) * float64(time.Second))
	}
	after = max(after, leastRetry)
	spread := time.Duration((q.stats.shed+q.stats.displaced+q.stats.expired)%retrySpread) * after / retrySpread
	return min(after+spread, mostRetry)
}

// full returns the refusal of a newcomer that a full queue sheds.
func (q *queue) full(w *waiter, now time.Time) error {
	after := q.retryAfter(now)
	return &route.Refusal{
		Err: route.ErrWorkersFull, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("no worker with model %q has a free slot, and %d requests wait for one, the most allowed: try again in %v",
			w.request.Model, q.order.Len(), after.Round(time.Millisecond)),
		Numbers: q.numbers(w, after),
	}
}

// displaced returns the refusal of a waiter that was displaced in a full queue.
func (q *queue) displaced(w *waiter, now time.Time) error {
	after := q.retryAfter(now)
	return &route.Refusal{
		Err: ErrDisplaced, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("%d requests wait for model %q, the most allowed, and one that is more urgent or of a tenant with fewer displaced this one: "+
			"try again in %v", q.order.Len(), w.request.Model, after.Round(time.Millisecond)),
		Numbers: q.numbers(w, after),
	}
}

// timedOut returns the refusal of a request that has waited for the longest time allowed.
func (q *queue) timedOut(w *waiter, now time.Time) error {
	after, waited := q.retryAfter(now), now.Sub(w.since)
	numbers := q.numbers(w, after)
	numbers["waited_ms"] = strconv.FormatInt(waited.Milliseconds(), 10)
	numbers["max_queue_time_ms"] = strconv.FormatInt(q.longest.Milliseconds(), 10)
	return &route.Refusal{
		Err: ErrQueueTimeout, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("no worker with model %q had a free slot for this request in %v, the longest time allowed in the scheduler; "+
			"other waiting requests: %d; try again in %v", w.request.Model, waited.Round(time.Millisecond), q.len(), after.Round(time.Millisecond)),
		Numbers: numbers,
	}
}

// tooLate returns the refusal of a request that would wait beyond its deadline.
func tooLate(w *waiter, wait time.Duration, now time.Time) error {
	left := max(w.deadline.Sub(now), 0)
	return &route.Refusal{
		Err: ErrTooLate, RetryMillis: min(max(wait-left, leastRetry), mostRetry).Milliseconds(),
		Message: fmt.Sprintf("the first token of model %q would come in %v by the rates measured, and the call ends in %v: "+
			"try again later, or with more time", w.request.Model, wait.Round(time.Millisecond), left.Round(time.Millisecond)),
		Numbers: map[string]string{
			"model": w.request.Model, "estimate_ms": strconv.FormatInt(wait.Milliseconds(), 10),
			"deadline_ms": strconv.FormatInt(left.Milliseconds(), 10),
		},
	}
}

// numbers returns the metadata of a refusal.
func (q *queue) numbers(w *waiter, after time.Duration) map[string]string {
	return map[string]string{
		"model": w.request.Model, "waiting": strconv.Itoa(q.order.Len()), "max_queue": strconv.Itoa(q.most),
		"retry_after_ms": strconv.FormatInt(after.Milliseconds(), 10),
	}
}

const (
	// drainWindow is the window of the drain rate, which covers one or two windows.
	drainWindow = 5 * time.Second
	// A queue has no drain rate until it has been non-empty for minDrainTime and minDrained requests
	// have left it. Before it filled up, its workers were not busy, so that the rate would be too low.
	minDrainTime, minDrained = time.Second, 8
)

// drainRate measures how fast a queue drains, in requests and in prompt tokens.
type drainRate struct {
	begun             time.Time // start of the previous window, or of the first one
	turned            time.Time // when the current window began
	previous, current drained
}

// drained is what left a queue in one window.
type drained struct{ requests, prompt int64 }

// restart resets the rate, because the queue was empty.
func (d *drainRate) restart(now time.Time) { *d = drainRate{begun: now, turned: now} }

// note counts a request that was granted a slot.
func (d *drainRate) note(prompt int64, now time.Time) {
	if now.Sub(d.turned) > drainWindow {
		d.begun, d.turned = d.turned, now
		d.previous, d.current = d.current, drained{}
	}
	d.current.requests++
	d.current.prompt += prompt
}

// rates returns requests and prompt tokens a second.
func (d *drainRate) rates(now time.Time) (requests, prompt float64, known bool) {
	seconds := now.Sub(d.begun).Seconds()
	n := d.previous.requests + d.current.requests
	if d.begun.IsZero() || seconds < minDrainTime.Seconds() || n < minDrained {
		return 0, 0, false
	}
	return float64(n) / seconds, float64(d.previous.prompt+d.current.prompt) / seconds, true
}
