package admission

import (
	"context"
	"time"
)

// wait queues an item until it is given a place, is refused, or its caller goes.
func (a *Admission) wait(ctx context.Context, i *item) (*Lease, error) {
	begun := time.Now()
	defer annotate(ctx, begun)
	l, err := a.push(i, begun)
	if err != nil {
		return nil, err
	}
	a.begin()
	defer a.end()
	a.dispatch(l)
	var over <-chan time.Time
	if !i.until.IsZero() {
		timer := time.NewTimer(time.Until(i.until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case g := <-i.granted:
		return g.lease, g.err
	case <-over:
		return a.expire(l, i)
	case <-ctx.Done():
		a.leave(l, i)
		return nil, context.Cause(ctx)
	}
}

// leave takes an item out whose caller waits no more.
func (a *Admission) leave(l *line, i *item) {
	l.mu.Lock()
	left := l.queue.leave(i)
	l.countLocked()
	a.tidyLocked(l)
	l.mu.Unlock()
	if !left {
		if g := <-i.granted; g.lease != nil { // it was given one meanwhile: another may have it
			g.lease.End()
		}
	}
	a.dispatch(l) // those behind may have waited for it
}

// expire refuses an item whose time is over, unless it was granted something meanwhile.
func (a *Admission) expire(l *line, i *item) (*Lease, error) {
	l.mu.Lock()
	refusal := l.queue.expire(i, time.Now())
	l.countLocked()
	a.tidyLocked(l)
	l.mu.Unlock()
	if refusal == nil {
		g := <-i.granted
		return g.lease, g.err
	}
	a.dispatch(l) // as in leave
	return nil, refusal
}

// push puts an item into the queue of its model.
func (a *Admission) push(i *item, now time.Time) (*line, error) {
	for {
		l := a.lineOf(i.request.Model)
		rate := a.prefillRate(i.request.Model)
		l.mu.Lock()
		if l.gone {
			l.mu.Unlock()
			continue
		}
		err := l.queue.push(i, rate, now)
		l.countLocked()
		a.tidyLocked(l)
		l.mu.Unlock()
		return l, err
	}
}

// tidyLocked forgets a queue that is empty and has never placed anything: of a model that may be none.
func (a *Admission) tidyLocked(l *line) {
	if l.queue.len() == 0 && l.placed.Load() == 0 {
		l.gone = true
		a.lines.CompareAndDelete(l.model, l)
	}
}

// prefillRate is what the workers that serve a model compute of prompts, in tokens a second, as far as they know.
func (a *Admission) prefillRate(model string) (sum float64) {
	workers := a.fleet.Snapshot().Route.Workers
	for n := range workers {
		if !workers[n].Serves() {
			continue
		}
		for m := range workers[n].Models {
			if is := &workers[n].Models[m]; is.Name == model {
				sum += is.PrefillRate
			}
		}
	}
	return sum
}

// dispatch gives places of a model to those who wait. again is when it must be done again, zero: not by the clock.
func (a *Admission) dispatch(l *line) (again time.Time) {
	if l.waiting.Load() == 0 {
		return again
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	again = l.queue.dispatch(time.Now(), a.grace, a.try)
	l.countLocked()
	a.tidyLocked(l)
	return again
}

// dispatchAll gives places of all models; again is the earliest of theirs.
func (a *Admission) dispatchAll() (again time.Time) {
	a.lines.Range(func(_, l any) bool {
		if at := a.dispatch(l.(*line)); !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
		return true
	})
	return again
}

// begin says that one more call waits. While any does, every new snapshot gives places.
func (a *Admission) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting++; a.waiting == 1 {
		a.idle = make(chan struct{})
		go a.follow(a.idle)
	}
}

// end says that a call waits no more.
func (a *Admission) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		close(a.idle)
	}
}

// follow gives places with every new snapshot, and refuses who has waited too long for a worker, until idle.
func (a *Admission) follow(idle <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := a.fleet.Snapshot().Next
		if again := a.dispatchAll(); !again.IsZero() {
			timer.Reset(time.Until(again))
		} else {
			timer.Stop()
		}
		select {
		case <-next:
		case <-timer.C:
		case <-idle:
			return
		}
	}
}
