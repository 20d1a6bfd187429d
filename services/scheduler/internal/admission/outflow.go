package admission

import (
	"math"
	"time"
)

const (
	// outflowWindow is the time over which a queue's rate is measured, once or twice.
	outflowWindow = 5 * time.Second
	// outflowTime and outflowItems are what must have passed and left since a queue was empty before it has a rate: before, its workers
	// were asked for less than they can do.
	outflowTime, outflowItems = time.Second, 8
	// leastRetry and mostRetry bound what a refused caller is told to wait; unknownRetry is said where there is no rate.
	leastRetry, mostRetry, unknownRetry = 200 * time.Millisecond, 30 * time.Second, time.Second
	// retrySpread is the number of times, up to twice the estimate, over which callers that are refused together are spread.
	retrySpread = 8
)

// outflow measures how fast a queue empties: in items, and in prompt tokens.
type outflow struct {
	begun  time.Time // of the window before, or of this one if there is none
	turned time.Time // of this window
	was    flow      // in the window before
	is     flow      // in this window
}

// flow is what left a queue.
type flow struct{ items, prompt int64 }

// begin starts anew: the queue was empty.
func (o *outflow) begin(now time.Time) { *o = outflow{begun: now, turned: now} }

// note counts an item that was given a place.
func (o *outflow) note(prompt int64, now time.Time) {
	if now.Sub(o.turned) > outflowWindow {
		o.begun, o.turned = o.turned, now
		o.was, o.is = o.is, flow{}
	}
	o.is.items++
	o.is.prompt += prompt
}

// rates are items and prompt tokens a second.
func (o *outflow) rates(now time.Time) (items, prompt float64, known bool) {
	seconds := now.Sub(o.begun).Seconds()
	n := o.was.items + o.is.items
	if o.begun.IsZero() || seconds < outflowTime.Seconds() || n < outflowItems {
		return 0, 0, false
	}
	return float64(n) / seconds, float64(o.was.prompt+o.is.prompt) / seconds, true
}

// wait estimates how long an item that comes now waits until its prompt is computed: for the places of those before it at the rate at
// which the queue empties, and for their prompt tokens and its own at that rate or the one that its model's workers measure, if that
// is higher.
func (q *queue) wait(i *item, prefillRate float64, now time.Time) (wait time.Duration, known bool) {
	perItem, perPrompt, known := q.outflow.rates(now)
	if !known || q.len() == 0 {
		return 0, false
	}
	items, prompt := q.ahead(i.class())
	seconds := float64(items+1) / perItem
	if rate := max(perPrompt, prefillRate); rate > 0 {
		seconds = max(seconds, float64(prompt+i.request.Prompt)/rate)
	}
	return time.Duration(min(seconds, math.MaxInt32) * float64(time.Second)), true
}

// ahead is what is served before a newcomer of a class: all of higher priority, and of its own no more than its tenant's share allows.
func (q *queue) ahead(c class) (items, prompt int64) {
	var all, own tenant
	tenants := int64(0)
	for other, t := range q.tenants {
		switch {
		case other.Priority > c.Priority:
			items, prompt = items+t.items, prompt+t.prompt
		case other.Priority == c.Priority:
			all.items, all.prompt = all.items+t.items, all.prompt+t.prompt
			if tenants++; other.Tenant == c.Tenant {
				own = *t
			}
		}
	}
	if own.items == 0 {
		tenants++
	}
	return items + min(all.items, (own.items+1)*tenants-1), prompt + min(all.prompt, own.prompt*tenants)
}

// retry is when a refused caller may come again: when half of what waits has left.
func (q *queue) retry(now time.Time) time.Duration {
	perItem, _, known := q.outflow.rates(now)
	after := unknownRetry
	if known {
		after = time.Duration(min(float64(q.len())/2/perItem, mostRetry.Seconds()) * float64(time.Second))
	}
	after = max(after, leastRetry)
	spread := time.Duration((q.stats.shed+q.stats.displaced+q.stats.expired)%retrySpread) * after / retrySpread
	return min(after+spread, mostRetry)
}
