package rig

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// shown is the state that a scheduler shows of a worker, and since when.
type shown struct {
	state state
	since time.Time
}

// entry is one scheduler and what it shows of its workers.
type entry struct {
	name  string
	model string // that a worker must have to be ready
	conn  *grpc.ClientConn
	infer pb.InferenceServiceClient
	fleet pb.FleetServiceClient

	mu      sync.Mutex
	workers []*pb.FleetWorker        // guarded by mu; nil while it shows nothing
	states  map[string]shown         // guarded by mu; by worker's id, of every worker ever shown
	bounds  map[string]time.Duration // guarded by mu; by worker's id, what it last said that one of its steps may take
	changed chan struct{}            // guarded by mu; closed at the next change
}

// dial makes an entry; nothing is asked yet.
func dial(name, address, model string) (*entry, error) {
	conn, err := rpc.Dial(address, "millrace-bench")
	if err != nil {
		return nil, err
	}
	return &entry{
		name: name, conn: conn, infer: pb.NewInferenceServiceClient(conn), fleet: pb.NewFleetServiceClient(conn),
		model: model, states: map[string]shown{}, bounds: map[string]time.Duration{}, changed: make(chan struct{}),
	}, nil
}

// watch follows what the scheduler shows until ctx ends, over its restarts.
func (e *entry) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := e.fleet.WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(100 * time.Millisecond)})
		for err == nil {
			var fleet *pb.WatchFleetResponse
			if fleet, err = stream.Recv(); err == nil {
				e.show(fleet.GetWorkers())
			}
		}
		e.show(nil)
		e.conn.ResetConnectBackoff()
		sleep(ctx, 50*time.Millisecond)
	}
}

func (e *entry) show(workers []*pb.FleetWorker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workers = workers
	for _, w := range workers {
		id := w.GetReport().GetWorkerId()
		if e.states[id].since.IsZero() {
			e.states[id] = shown{since: time.Now()}
		}
		if w.GetConnected() {
			e.bounds[id] = w.GetReport().GetProgress().GetStepBound().AsDuration()
		}
	}
	for id, had := range e.states {
		if s := stateOf(workers, id, e.model); s != had.state {
			e.states[id] = shown{s, time.Now()}
		}
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// state of a worker in one scheduler's eyes.
type state int

const (
	lost     state = iota // not connected, or not known
	starting              // connected; its model is not ready
	draining
	ready
)

func (s state) String() string { return [...]string{"lost", "starting", "draining", "ready"}[s] }

// stateOf is what a list of workers says of one.
func stateOf(workers []*pb.FleetWorker, id, model string) state {
	s := lost
	for _, w := range workers { // an address that it had before may be in the list too
		r := w.GetReport()
		if r.GetWorkerId() != id || !w.GetConnected() {
			continue
		}
		switch r.GetState() {
		case pb.WorkerState_WORKER_STATE_DRAINING:
			s = max(s, draining)
		case pb.WorkerState_WORKER_STATE_READY, pb.WorkerState_WORKER_STATE_DEGRADED:
			s = max(s, starting)
			for _, m := range r.GetModels() {
				if m.GetName() == model && m.GetState() == pb.ModelState_MODEL_STATE_READY {
					s = ready
				}
			}
		default:
			s = max(s, starting)
		}
	}
	return s
}

// at is the id of the worker that is shown at a host; empty if none is.
func at(workers []*pb.FleetWorker, host string) string {
	for _, w := range workers {
		if h, _, err := net.SplitHostPort(w.GetAddress()); err == nil && h == host && w.GetConnected() {
			return w.GetReport().GetWorkerId()
		}
	}
	return ""
}

// until waits until what is shown holds.
func (e *entry) until(ctx context.Context, limit time.Duration, holds func([]*pb.FleetWorker) bool) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		e.mu.Lock()
		workers, changed := e.workers, e.changed
		e.mu.Unlock()
		if workers != nil && holds(workers) {
			return true
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// showing waits until every scheduler shows a worker in the state that it has since a time, for shownTimeout at most, and fails
// if one did so later than Config.Truth. It gives the longest time.
func (r *rig) showing(ctx context.Context, id string, want state, since time.Time) (slowest time.Duration, err error) {
	return r.shows(ctx, id, want, since, func(time.Duration) time.Duration { return r.cfg.Truth })
}

// noticing is showing for a worker that is silent since a time.
func (r *rig) noticing(ctx context.Context, id string, since time.Time) (slowest time.Duration, err error) {
	return r.shows(ctx, id, lost, since, func(bound time.Duration) time.Duration { return r.cfg.Truth + waited(bound) })
}

// shows gives each scheduler the time that it has by what the worker says that one of its steps may take.
func (r *rig) shows(ctx context.Context, id string, want state, since time.Time, within func(bound time.Duration) time.Duration) (slowest time.Duration, err error) {
	for _, e := range r.entries {
		if !e.until(ctx, shownTimeout, func(workers []*pb.FleetWorker) bool { return stateOf(workers, id, r.cfg.Model) == want }) {
			return 0, fmt.Errorf("%s has not shown %s as %v within %v", e.name, id, want, shownTimeout)
		}
		e.mu.Lock()
		took, limit := e.states[id].since.Sub(since), within(e.bounds[id])
		e.mu.Unlock()
		if slowest = max(slowest, took); took > limit {
			return slowest, fmt.Errorf("%s showed %s as %v after %s, want within %s", e.name, id, want, seconds(took), seconds(limit))
		}
	}
	return slowest, nil
}

// waited is how much longer than others a silent worker is waited for whose steps may take longer than stale, which is what the
// schedulers' flag is by default: silence is counted in sevenths of it, ten at most (docs/decisions/026).
func waited(bound time.Duration) time.Duration {
	const stale, ticks, most = 1600 * time.Millisecond, 7, 10
	tick := stale / ticks
	more := int((bound+tick-1)/tick) - ticks
	return stale * time.Duration(min(max(more, 0), most-ticks)) / ticks
}

// shownTimeout bounds the wait for a scheduler to show what is so.
const shownTimeout = 30 * time.Second
