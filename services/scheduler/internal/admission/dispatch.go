package admission

import (
	"errors"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// scanned is how many items are tried, at most, to find one for a place that those before it cannot use.
	scanned = 32
	// mostPassed is how many may pass an item that has no room where they have; one that is less urgent counts as lesser ones. Then those
	// behind it wait until it has room.
	mostPassed, lesser = 16, 4
)

// dispatch gives places to as many items as there are places for, in order. try takes a place for an item; its error is Pick's. An item
// for which no worker is left waits for one until grace is over. again is when that must be looked at, zero: not by the clock.
func (q *queue) dispatch(now time.Time, grace time.Duration, try func(*item) (*Lease, error)) (again time.Time) {
	for q.len() > 0 {
		var done *item
		done, again = q.first(now, grace, try)
		if done == nil {
			return again
		}
	}
	return time.Time{}
}

// first gives a place to, or refuses, the first item in order for which that can be done.
func (q *queue) first(now time.Time, grace time.Duration, try func(*item) (*Lease, error)) (done *item, again time.Time) {
	var passed []*item
	var failed []*item
	var got grant
	for i := range q.each {
		if f := like(i, failed); f != nil {
			passed = append(passed, i)
			if i.away.IsZero() {
				i.away = f.away
			}
			continue
		}
		if len(failed) == scanned {
			break
		}
		lease, err := try(i)
		if err == nil {
			q.away = time.Time{}
			done, got = i, grant{lease: lease}
			break
		}
		i.full, i.tight = errors.Is(err, route.ErrWorkersFull), errors.Is(err, route.ErrTight)
		if until, waits := q.mayWait(i, err, now, grace); !waits {
			done, got = i, grant{err: err}
			break
		} else if !until.IsZero() && (again.IsZero() || until.Before(again)) {
			again = until
		}
		passed, failed = append(passed, i), append(failed, i)
		switch {
		case !i.request.Pinned() && i.full && i.reach == 0, // it may go anywhere with any size: nobody behind it finds a place
			i.passed >= mostPassed && (i.full || i.tight):
			return nil, again
		}
	}
	if done == nil {
		return nil, again
	}
	q.remove(done)
	if got.lease != nil {
		for _, p := range passed {
			switch {
			case !got.lease.choice.Suits(&p.request): // it could not have gone there
			case p.class().Priority > done.class().Priority, p.request.Resumes && !done.request.Resumes:
				p.passed += lesser
			default:
				p.passed++
			}
		}
		got.lease.charged = q.placed(done, now)
	}
	done.granted <- got
	return done, again
}

// like is one of those that found nothing for whose reasons an item finds nothing either; nil: there is none.
func like(i *item, failed []*item) *item {
	a := &i.request
	for _, f := range failed {
		b := &f.request
		switch {
		case f.reach > 0 && !a.Reaches(b, f.reach),
			len(b.Exclude)+len(b.Unloaded) > 0, b.Digest != "" && a.Digest != b.Digest, b.ClassID != "" && a.ClassID != b.ClassID:
		case f.full && (b.Resumes || !a.Resumes),
			f.tight && (b.Resumes || !a.Resumes) && a.Sequences >= b.Sequences && a.Prompt >= b.Prompt,
			!f.full && !f.tight && b.Resumes == a.Resumes && b.Pinned() == a.Pinned() && b.Digest == a.Digest && b.ClassID == a.ClassID:
			return f
		}
	}
	return nil
}

// mayWait is whether an item that found no place goes on waiting, and until when; zero: as long as its caller does.
func (q *queue) mayWait(i *item, err error, now time.Time, grace time.Duration) (until time.Time, waits bool) {
	if i.full || i.tight {
		q.away, i.away = time.Time{}, time.Time{}
		return time.Time{}, true
	}
	load := q.onDemand && route.Loadable(err) != nil
	if load && !route.Loadable(err).Returns {
		return time.Time{}, false
	}
	if i.away.IsZero() {
		i.away = now
	}
	nobody := errors.Is(err, route.ErrNoWorker) || errors.Is(err, route.ErrFleetUnknown)
	switch {
	case i.request.Resumes && nobody && !load:
		return time.Time{}, true
	case i.request.Resumes, load && i.request.Pinned(), i.returns:
		until = i.away.Add(grace)
	case nobody && !i.request.Pinned():
		if q.away.IsZero() {
			q.away = now
		}
		until = q.away.Add(grace)
	default:
		return time.Time{}, false
	}
	return until, now.Before(until)
}

// placed charges an item that has a place now; charged is whether its tenant pays for it.
func (q *queue) placed(i *item, now time.Time) (charged bool) {
	q.stats.waited(now.Sub(i.since))
	if i.request.Resumes {
		return false
	}
	q.order.Charge(i.class(), int(i.request.Tokens))
	q.outflow.note(i.request.Prompt, now)
	return true
}
