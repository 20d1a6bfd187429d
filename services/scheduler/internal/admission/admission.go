package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// DefaultMaxQueue is how many requests may wait for one model: ten seconds of work at a hundred
	// requests a second. The server does not count the bytes of requests up to 4 KiB, so a full queue
	// holds at most 4 MiB that no budget counts.
	DefaultMaxQueue = 1024
	// DefaultGrace is how long a model may be without a worker before its requests are refused. A
	// frozen worker is detected in less time (1.6 s), and a killed one is usually back.
	DefaultGrace = 3 * time.Second
	// DefaultMaxQueueTime is how long a request may wait. A person has given up by then, and a program
	// without a deadline must retry instead of holding its stream for as long as the queue is long.
	DefaultMaxQueueTime = 5 * time.Minute
)

// Fleet provides snapshots of the fleet.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Admission leases slots. It is safe for concurrent use.
type Admission struct {
	fleet        Fleet
	maxInFlight  int64 // requests of this process on one worker; 0: no bound
	maxQueue     int
	maxQueueTime time.Duration
	grace        time.Duration
	onDemand     bool

	queues sync.Map // of *modelQueue, by model

	mu struct {
		sync.Mutex
		waiting int           // calls in Place that wait
		idle    chan struct{} // closed when the last waiter is gone; nil without waiters
	}
}

// Option changes what New makes.
type Option func(*Admission)

// MaxQueue sets how many requests may wait for one model, not counting those that resume; 0: none.
func MaxQueue(n int) Option { return func(a *Admission) { a.maxQueue = n } }

// MaxQueueTime sets how long a request may wait, unless it resumes; 0: as long as its caller does.
// The time that it waits on a worker is bounded by the worker.
func MaxQueueTime(d time.Duration) Option { return func(a *Admission) { a.maxQueueTime = d } }

// Grace sets how long a model may be without a worker before its requests are refused; 0: not at
// all.
func Grace(d time.Duration) Option { return func(a *Admission) { a.grace = d } }

// OnDemand says that the caller of Place loads models on demand. Then Place returns a refusal that
// a load would resolve at once, or after the grace if the worker that has the model may come back.
func OnDemand(on bool) Option { return func(a *Admission) { a.onDemand = on } }

// New returns an admission over a fleet. maxInFlight bounds the requests of this process on one
// worker; 0: no bound. It is the only bound for workers of earlier versions, which do not report
// their slots.
func New(f Fleet, maxInFlight int64, options ...Option) *Admission {
	a := &Admission{fleet: f, maxInFlight: maxInFlight, maxQueue: DefaultMaxQueue, maxQueueTime: DefaultMaxQueueTime, grace: DefaultGrace}
	for _, o := range options {
		o(a)
	}
	return a
}

// Place leases a slot on a worker. It blocks until one is free, the request is refused, or ctx
// ends. The error is ctx's cause or a *route.Refusal.
func (a *Admission) Place(ctx context.Context, request route.Request) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	request.MaxInFlight, request.Tie = a.maxInFlight, rand.Uint64()
	w := &waiter{request: request}
	if !a.mustQueue(&request) {
		lease, err := a.acquire(w)
		if err == nil || !a.mayWait(w, err) {
			return lease, err
		}
	}
	w.granted = make(chan grant, 1)
	w.deadline, _ = ctx.Deadline()
	return a.wait(ctx, w)
}

// mustQueue reports whether a request would overtake waiters if it took a slot now.
func (a *Admission) mustQueue(r *route.Request) bool {
	q := a.queueIfAny(r.Model)
	switch {
	case q == nil:
		return false
	case r.Resumes:
		return q.resuming.Load() > 0
	}
	return r.Sequences > 0 && q.waiting.Load() > 0
}

// acquire leases a slot for a request if one is free. The error is that of route.Pick.
func (a *Admission) acquire(w *waiter) (*Lease, error) {
	request := w.request
	mayDropExclusions := request.Resumes && len(request.Exclude) > 0
	for {
		snapshot := a.fleet.Snapshot()
		choice, err := route.Pick(&snapshot.Route, request)
		if err != nil && mayDropExclusions && !errors.Is(err, route.ErrWorkersFull) && !errors.Is(err, route.ErrTooLarge) {
			// No other worker is left. A stream may return to one that failed it, rather than wait.
			mayDropExclusions, request.Exclude = false, nil
			continue
		}
		if w.reach = choice.Reach; err != nil {
			w.mayReturn = a.pinnedMayReturn(snapshot, &w.request, err)
			return nil, err
		}
		m := &snapshot.Members[choice.Index]
		if !m.Link.Acquire() {
			// The link ended after the snapshot was made. The next snapshot shows that, too.
			request.Exclude = append(slices.Clone(request.Exclude), m.Report.GetWorkerId())
			continue
		}
		if choice.Reserve() {
			a.queue(request.Model).placed.Add(1)
			return &Lease{
				WorkerID: m.Report.GetWorkerId(), ClassID: choice.ClassID, Link: m.Link, Cached: choice.Cached,
				Context: choice.Context, Longest: choice.Longest,
				choice: choice, ended: a.slotFreed, model: request.Model, class: w.class(), left: request.Tokens,
			}, nil
		}
		m.Link.Release() // another request took the last slot since Pick, and the next Pick sees that
	}
}

// mayWait reports whether a request that found no slot may wait for one.
func (a *Admission) mayWait(w *waiter, err error) bool {
	r := &w.request
	if errors.Is(err, route.ErrWorkersFull) || errors.Is(err, route.ErrTooLarge) {
		return true
	}
	load := a.onDemand && route.Loadable(err) != nil
	switch {
	case load && !route.Loadable(err).Returns:
		return false
	case r.Resumes && !load:
		return !errors.Is(err, route.ErrAmbiguousModel)
	case !load && r.Pinned():
		return w.mayReturn
	case !load && !errors.Is(err, route.ErrNoWorker):
		return false
	}
	return mayReturn(a.fleet.Snapshot(), r.Model, a.grace, anyCopy)
}

// wait queues a request until it is granted a slot, is refused, or its caller is gone.
func (a *Admission) wait(ctx context.Context, w *waiter) (*Lease, error) {
	begun := time.Now()
	defer func() { rpc.Annotate(ctx, "queued", time.Since(begun).Round(time.Millisecond).String()) }()
	q, err := a.enqueue(w, begun)
	if err != nil {
		return nil, err
	}
	a.beginWait()
	defer a.endWait()
	return q.wait(ctx, w)
}

// enqueue adds a request to the queue of its model, unless the queue sheds it.
func (a *Admission) enqueue(w *waiter, now time.Time) (*modelQueue, error) {
	rate := a.prefillRate(w.request.Model)
	for {
		q := a.queue(w.request.Model)
		if err := q.push(w, rate, now); !errors.Is(err, errRemoved) {
			return q, err
		}
	}
}

// dispatchAll dispatches all queues and returns the earliest of their times.
func (a *Admission) dispatchAll() (again time.Time) {
	a.queues.Range(func(_, q any) bool {
		if t := q.(*modelQueue).dispatch(); !t.IsZero() && (again.IsZero() || t.Before(again)) {
			again = t
		}
		return true
	})
	return again
}

// beginWait counts a waiting call. The first one starts follow, which lives until none waits.
func (a *Admission) beginWait() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.waiting++; a.mu.waiting == 1 {
		a.mu.idle = make(chan struct{})
		go a.follow(a.mu.idle)
	}
}

// endWait counts a call that no longer waits.
func (a *Admission) endWait() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.waiting--; a.mu.waiting == 0 {
		close(a.mu.idle)
	}
}

// follow dispatches on every new snapshot, and when a grace ends, until idle is closed.
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

// prefillRate returns the prompt tokens a second that the workers of a model have measured
// together.
func (a *Admission) prefillRate(model string) (sum float64) {
	workers := a.fleet.Snapshot().Route.Workers
	for n := range workers {
		if !workers[n].Serves() {
			continue
		}
		for i := range workers[n].Models {
			if m := &workers[n].Models[i]; m.Name == model {
				sum += m.PrefillRate
			}
		}
	}
	return sum
}

// queueIfAny returns the queue of a model; nil: it has none.
func (a *Admission) queueIfAny(model string) *modelQueue {
	if q, found := a.queues.Load(model); found {
		return q.(*modelQueue)
	}
	return nil
}

// queue returns the queue of a model, and makes it if necessary.
func (a *Admission) queue(model string) *modelQueue {
	if q := a.queueIfAny(model); q != nil {
		return q
	}
	q := &modelQueue{admission: a, model: model}
	q.mu.queue = queue{most: a.maxQueue, longest: a.maxQueueTime, onDemand: a.onDemand}
	stored, _ := a.queues.LoadOrStore(model, q)
	return stored.(*modelQueue)
}

// mayReturn reports whether a model is between two workers: a worker that served a suitable copy
// was heard less than grace ago, or one that has the model is starting.
func mayReturn(s *fleet.Snapshot, model string, grace time.Duration, suits func(*route.Model) bool) bool {
	for n := range s.Route.Workers {
		w, m := &s.Route.Workers[n], &s.Members[n]
		starts := w.Connected && w.State == route.Starting && w.Has(model)
		lost := (!w.Connected || !m.Link.Reports()) && w.Serving(model) && time.Since(m.LastMessage) < grace
		if !starts && !lost {
			continue
		}
		i := slices.IndexFunc(w.Models, func(m route.Model) bool { return m.Name == model })
		if i < 0 || suits(&w.Models[i]) {
			return grace > 0
		}
	}
	return false
}

// anyCopy accepts every copy of a model.
func anyCopy(*route.Model) bool { return true }

// copyFor accepts the copies that have the digest and class that a request expects. A worker that
// has not reported its own may have them.
func copyFor(r *route.Request) func(*route.Model) bool {
	return func(m *route.Model) bool {
		return (r.Digest == "" || m.Digest == "" || r.Digest == m.Digest) && (r.ClassID == "" || m.ClassID == "" || r.ClassID == m.ClassID)
	}
}

// pinnedMayReturn reports whether a worker may come back that has the digest or class that a pinned
// request found on no worker. A request that excludes workers does not wait: the relay places it
// again without the exclusions.
func (a *Admission) pinnedMayReturn(s *fleet.Snapshot, r *route.Request, err error) bool {
	if !r.Pinned() || len(r.Exclude)+len(r.Unloaded) > 0 {
		return false
	}
	absent := errors.Is(err, route.ErrNoWorker) || errors.Is(err, route.ErrDigestMismatch) || errors.Is(err, route.ErrClassMismatch)
	return absent && mayReturn(s, r.Model, a.grace, copyFor(r))
}
