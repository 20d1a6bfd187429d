package admission

import (
	"context"
	"math/rand/v2"

	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Fleet is where snapshots come from.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Admission gives places. Safe for concurrent use.
type Admission struct {
	fleet Fleet
	// maxInFlight is how many requests a worker gets from this process at once; 0 is no bound.
	maxInFlight int64
}

// New makes an admission over a fleet.
func New(f Fleet, maxInFlight int64) *Admission {
	return &Admission{fleet: f, maxInFlight: maxInFlight}
}

// Place gives a request a worker. The error is ctx's cause, or a *route.Refusal.
func (a *Admission) Place(ctx context.Context, request route.Request) (*Lease, error) {
	request.MaxInFlight, request.Tie = a.maxInFlight, rand.Uint64()
	for ctx.Err() == nil {
		snapshot := a.fleet.Snapshot()
		i, err := route.Pick(&snapshot.Route, request)
		if err != nil {
			return nil, err
		}
		m := &snapshot.Members[i]
		if !m.Link.Acquire() {
			// The link ended after the snapshot was made: this worker is out, the next snapshot says so too.
			request.Exclude = append(request.Exclude, m.Report.GetWorkerId())
			continue
		}
		if m.Load.Begin(request.Tokens, request.MaxInFlight) {
			return &Lease{
				WorkerID: m.Report.GetWorkerId(), ClassID: snapshot.Route.Workers[i].ClassOf(request.Model),
				Link: m.Link, load: m.Load, left: request.Tokens,
			}, nil
		}
		m.Link.Release() // others took its last place meanwhile, which the next pick sees
	}
	return nil, context.Cause(ctx)
}
