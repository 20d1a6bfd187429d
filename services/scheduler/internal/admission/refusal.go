package admission

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Sentinels of Place beside those of route; each comes inside a *route.Refusal with the numbers.
var (
	// ErrDisplaced: a more urgent request, or one of a tenant with fewer, took the place in a full queue.
	ErrDisplaced = errors.New("displaced in a full queue")
	// ErrTooLate: by measured rates the first token would come after the caller's deadline.
	ErrTooLate = errors.New("the deadline cannot be met")
	// ErrQueueTimeout: the request has waited for its place for as long as one may.
	ErrQueueTimeout = errors.New("waited too long for a place")
)

// full is the refusal of a newcomer that a full queue has no place for.
func (q *queue) full(i *item, now time.Time) error {
	after := q.retry(now)
	return &route.Refusal{
		Err: route.ErrWorkersFull, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("no worker with model %q has a place, and %d requests wait for one, which is as many as may: try again in %v",
			i.request.Model, q.order.Len(), after.Round(time.Millisecond)),
		Numbers: q.numbers(i, after),
	}
}

// displaced is the refusal of a request that has lost its place in a full queue.
func (q *queue) displaced(i *item, now time.Time) error {
	after := q.retry(now)
	return &route.Refusal{
		Err: ErrDisplaced, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("%d requests wait for model %q, which is as many as may, and one more urgent or of a tenant with fewer took the place of this one: "+
			"try again in %v", q.order.Len(), i.request.Model, after.Round(time.Millisecond)),
		Numbers: q.numbers(i, after),
	}
}

// timedOut is the refusal of a request that has waited for as long as one may, and waits no more.
func (q *queue) timedOut(i *item, now time.Time) error {
	after, waited := q.retry(now), now.Sub(i.since)
	numbers := q.numbers(i, after)
	numbers["waited_ms"] = strconv.FormatInt(waited.Milliseconds(), 10)
	numbers["max_queue_time_ms"] = strconv.FormatInt(q.longest.Milliseconds(), 10)
	return &route.Refusal{
		Err: ErrQueueTimeout, RetryMillis: after.Milliseconds(),
		Message: fmt.Sprintf("no worker with model %q has had a place for this request in %v, which is as long as one waits in the scheduler; "+
			"waiting beside it: %d; try again in %v", i.request.Model, waited.Round(time.Millisecond), q.len(), after.Round(time.Millisecond)),
		Numbers: numbers,
	}
}

func (q *queue) numbers(i *item, after time.Duration) map[string]string {
	return map[string]string{
		"model": i.request.Model, "waiting": strconv.Itoa(q.order.Len()), "max_queue": strconv.Itoa(q.most),
		"retry_after_ms": strconv.FormatInt(after.Milliseconds(), 10),
	}
}

// tooLate is the refusal of a request that would wait longer than its caller does.
func tooLate(i *item, wait time.Duration, now time.Time) error {
	left := max(i.deadline.Sub(now), 0)
	return &route.Refusal{
		Err: ErrTooLate, RetryMillis: min(max(wait-left, leastRetry), mostRetry).Milliseconds(),
		Message: fmt.Sprintf("the first token of model %q would come in %v by the rates measured, and the call ends in %v: "+
			"try again later, or with more time", i.request.Model, wait.Round(time.Millisecond), left.Round(time.Millisecond)),
		Numbers: map[string]string{
			"model": i.request.Model, "estimate_ms": strconv.FormatInt(wait.Milliseconds(), 10),
			"deadline_ms": strconv.FormatInt(left.Milliseconds(), 10),
		},
	}
}
