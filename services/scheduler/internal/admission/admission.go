package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

const (
	// DefaultMaxQueue is how many requests wait for places of one model: at a hundred answers a second they wait ten seconds. With the
	// 4 KiB up to which the server counts no request's bytes that is 4 MiB.
	DefaultMaxQueue = 1024
	// DefaultGrace is how long a model may be without a worker before its requests are refused: a frozen worker is found out in less,
	// and one that was killed is back.
	DefaultGrace = 3 * time.Second
	// DefaultMaxQueueTime is how long a call waits for its first place: whoever reads answers has gone before, and a program that has
	// set no deadline is told to come again instead of holding its stream for as long as a queue is long.
	DefaultMaxQueueTime = 5 * time.Minute
)

// Fleet is where snapshots come from.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Admission gives places. Safe for concurrent use.
type Admission struct {
	fleet Fleet
	// maxInFlight is how many requests a worker gets from this process at once; 0 is no bound.
	maxInFlight  int64
	maxQueue     int
	maxQueueTime time.Duration
	grace        time.Duration
	onDemand     bool

	lines sync.Map // of *line, by model

	mu      sync.Mutex
	waiting int           // guarded by mu; calls in Place that wait
	idle    chan struct{} // guarded by mu; closed when none waits any more, nil while none does
}

// Option changes what New makes.
type Option func(*Admission)

// MaxQueue is how many requests wait for places of one model, those that resume aside; 0: none does.
func MaxQueue(n int) Option { return func(a *Admission) { a.maxQueue = n } }

// MaxQueueTime is how long a request waits here at a time, those that resume aside; 0: as long as its caller does. What it waits at a
// worker is the worker's to bound.
func MaxQueueTime(d time.Duration) Option { return func(a *Admission) { a.maxQueueTime = d } }

// Grace is how long a model may be without a worker before its requests are refused; 0: at once.
func Grace(d time.Duration) Option { return func(a *Admission) { a.grace = d } }

// OnDemand is whether whoever asks has a model loaded that nobody serves: then a refusal that a load would help is given at once, or once
// the worker that has it loaded has not come back within the grace.
func OnDemand(is bool) Option { return func(a *Admission) { a.onDemand = is } }

// New makes an admission over a fleet. maxInFlight is how many requests a worker gets from this process at once, which is all that
// bounds a worker that does not tell its places; 0 is no bound.
func New(f Fleet, maxInFlight int64, options ...Option) *Admission {
	a := &Admission{fleet: f, maxInFlight: maxInFlight, maxQueue: DefaultMaxQueue, maxQueueTime: DefaultMaxQueueTime, grace: DefaultGrace}
	for _, o := range options {
		o(a)
	}
	return a
}

// Place gives a request a worker, and waits for a place on one where it must. The error is ctx's cause, or a *route.Refusal.
func (a *Admission) Place(ctx context.Context, request route.Request) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	request.MaxInFlight, request.Tie = a.maxInFlight, rand.Uint64()
	i := &item{request: request}
	if l := a.line(request.Model); l == nil || !l.ahead(i) {
		lease, err := a.try(i)
		if err == nil || !a.mayWait(i, err) {
			return lease, err
		}
	}
	i.granted = make(chan grant, 1)
	i.deadline, _ = ctx.Deadline()
	return a.wait(ctx, i)
}

// Stats are those of every model that has been served, by name.
func (a *Admission) Stats() (all []Stats) {
	now := time.Now()
	a.lines.Range(func(_, l any) bool {
		all = append(all, l.(*line).stats(now))
		return true
	})
	slices.SortFunc(all, func(a, b Stats) int { return strings.Compare(a.Model, b.Model) })
	return all
}

// mayWait is whether a request that found no place may wait for one.
func (a *Admission) mayWait(i *item, err error) bool {
	r := &i.request
	if errors.Is(err, route.ErrWorkersFull) || errors.Is(err, route.ErrTight) {
		return true
	}
	load := a.onDemand && route.Loadable(err) != nil
	switch {
	case load && !route.Loadable(err).Returns:
		return false
	case r.Resumes && !load:
		return !errors.Is(err, route.ErrAmbiguousModel)
	case !load && r.Pinned():
		return i.returns
	case !load && !errors.Is(err, route.ErrNoWorker):
		return false
	}
	return between(a.fleet.Snapshot(), r.Model, a.grace, anyCopy)
}

// between is whether a model is between workers: one that served a copy of it that suits was heard less than grace ago, or one that
// has it, and may have such a copy, is starting.
func between(s *fleet.Snapshot, model string, grace time.Duration, suits func(*route.Model) bool) bool {
	for n := range s.Route.Workers {
		w, m := &s.Route.Workers[n], &s.Members[n]
		starts := w.Connected && w.State == route.Starting && w.Has(model)
		gone := (!w.Connected || !m.Link.Reports()) && w.Serving(model) && time.Since(m.LastMessage) < grace
		if !starts && !gone {
			continue
		}
		if at := slices.IndexFunc(w.Models, func(m route.Model) bool { return m.Name == model }); at < 0 || suits(&w.Models[at]) {
			return grace > 0
		}
	}
	return false
}

// anyCopy suits a request that is not pinned.
func anyCopy(*route.Model) bool { return true }

// copyFor suits a request that expects a digest or a class; a worker that has not told either yet may have them.
func copyFor(r *route.Request) func(*route.Model) bool {
	return func(m *route.Model) bool {
		return (r.Digest == "" || m.Digest == "" || r.Digest == m.Digest) && (r.ClassID == "" || m.ClassID == "" || r.ClassID == m.ClassID)
	}
}

// returns is whether a worker may be back that has what a request found nowhere: the digest or the class that its caller expects. Who has
// been told of workers that they fail asks again without leaving them out.
func (a *Admission) returns(s *fleet.Snapshot, r *route.Request, err error) bool {
	if !r.Pinned() || len(r.Exclude)+len(r.Unloaded) > 0 {
		return false
	}
	absent := errors.Is(err, route.ErrNoWorker) || errors.Is(err, route.ErrDigestMismatch) || errors.Is(err, route.ErrClassMismatch)
	return absent && between(s, r.Model, a.grace, copyFor(r))
}

// try takes a place for an item, if there is one.
func (a *Admission) try(i *item) (*Lease, error) {
	request := i.request
	choosy := request.Resumes && len(request.Exclude) > 0
	for {
		snapshot := a.fleet.Snapshot()
		choice, err := route.Pick(&snapshot.Route, request)
		if err != nil && choosy && !errors.Is(err, route.ErrWorkersFull) && !errors.Is(err, route.ErrTight) {
			// Nobody else is left: it takes one that it was on before rather than wait for another.
			choosy, request.Exclude = false, nil
			continue
		}
		if i.reach = choice.Reach; err != nil {
			i.returns = a.returns(snapshot, &i.request, err)
			return nil, err
		}
		m := &snapshot.Members[choice.Index]
		if !m.Link.Acquire() {
			// The link ended after the snapshot was made: this worker is out, the next snapshot says so too.
			request.Exclude = append(slices.Clone(request.Exclude), m.Report.GetWorkerId())
			continue
		}
		if choice.Take() {
			a.lineOf(request.Model).placed.Add(1)
			return &Lease{
				WorkerID: m.Report.GetWorkerId(), ClassID: choice.ClassID, Link: m.Link, Cached: choice.Cached,
				Context: choice.Context, Longest: choice.Longest,
				choice: choice, ended: a.ended, model: request.Model, class: i.class(), left: request.Tokens,
			}, nil
		}
		m.Link.Release() // others took its last place meanwhile, which the next pick sees
	}
}

// ended gives the place of a lease that has ended to those who wait.
func (a *Admission) ended(l *Lease) {
	if own := a.line(l.model); own != nil {
		if l.beyond > 0 || l.charged && l.left > 0 {
			own.mu.Lock()
			own.queue.settle(l)
			own.mu.Unlock()
		}
		a.dispatch(own)
	}
	if l.crowded {
		a.dispatchAll()
	}
}

// line is the queue of a model; nil: it has none yet.
func (a *Admission) line(model string) *line {
	if l, there := a.lines.Load(model); there {
		return l.(*line)
	}
	return nil
}

// lineOf is the queue of a model, made if it has none. Only models that workers serve have one that stays.
func (a *Admission) lineOf(model string) *line {
	if l := a.line(model); l != nil {
		return l
	}
	l, _ := a.lines.LoadOrStore(model, &line{model: model, queue: queue{most: a.maxQueue, longest: a.maxQueueTime, onDemand: a.onDemand}})
	return l.(*line)
}

// annotate notes in the call's log line how long it has waited.
func annotate(ctx context.Context, since time.Time) {
	rpc.Annotate(ctx, "queued", time.Since(since).Round(time.Millisecond).String())
}
