package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// fleet is schedulers, workers and the driver of their faults.
type fleet struct {
	driver
	model      string
	workers    []string // ids
	schedulers []*scheduler
}

// state is the state of a worker as one scheduler shows it.
type state int

const (
	lost     state = iota // not connected, or not known
	starting              // connected; the model is not ready
	draining
	ready
)

func (s state) String() string { return [...]string{"lost", "starting", "draining", "ready"}[s] }

// entered is a state and when a scheduler first showed it.
type entered struct {
	state state
	at    time.Time
}

// scheduler is a connection to one scheduler and the fleet as it shows it.
type scheduler struct {
	name  string
	model string // a worker must have it to be ready
	conn  *grpc.ClientConn
	infer pb.InferenceServiceClient
	fleet pb.FleetServiceClient

	mu         sync.Mutex
	workers    []*pb.FleetWorker        // guarded by mu; nil while there is no answer
	states     map[string]entered       // guarded by mu; by worker id, of every worker ever shown
	stepBounds map[string]time.Duration // guarded by mu; by worker id, as last reported
	changed    chan struct{}            // guarded by mu; closed at the next change
}

// dial returns a scheduler without contacting it.
func dial(name, address, model string) (*scheduler, error) {
	conn, err := rpc.Dial(address, "millrace-bench")
	if err != nil {
		return nil, err
	}
	return &scheduler{
		name: name, model: model, conn: conn, infer: pb.NewInferenceServiceClient(conn), fleet: pb.NewFleetServiceClient(conn),
		states: map[string]entered{}, stepBounds: map[string]time.Duration{}, changed: make(chan struct{}),
	}, nil
}

// watch follows every scheduler until stop is called.
func (f *fleet) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, s := range f.schedulers {
		wg.Go(func() { s.watch(ctx) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// watch follows the fleet as the scheduler shows it, also over restarts of the scheduler.
func (s *scheduler) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := s.fleet.WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(100 * time.Millisecond)})
		for err == nil {
			var view *pb.WatchFleetResponse
			if view, err = stream.Recv(); err == nil {
				s.update(view.GetWorkers())
			}
		}
		s.update(nil)
		s.conn.ResetConnectBackoff()
		sleep(ctx, 50*time.Millisecond)
	}
}

func (s *scheduler) update(workers []*pb.FleetWorker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = workers
	for _, w := range workers {
		id := w.GetReport().GetWorkerId()
		if s.states[id].at.IsZero() {
			s.states[id] = entered{at: time.Now()}
		}
		if w.GetConnected() {
			s.stepBounds[id] = w.GetReport().GetProgress().GetStepBound().AsDuration()
		}
	}
	for id, had := range s.states {
		if now := stateOf(workers, id, s.model); now != had.state {
			s.states[id] = entered{now, time.Now()}
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// stateOf returns the state of a worker in a scheduler's list. An address that it had before may be
// listed too, so the best entry counts.
func stateOf(workers []*pb.FleetWorker, id, model string) state {
	best := lost
	for _, w := range workers {
		r := w.GetReport()
		if r.GetWorkerId() != id || !w.GetConnected() {
			continue
		}
		best = max(best, starting)
		switch r.GetState() {
		case pb.WorkerState_WORKER_STATE_DRAINING:
			best = max(best, draining)
		case pb.WorkerState_WORKER_STATE_READY, pb.WorkerState_WORKER_STATE_DEGRADED:
			for _, m := range r.GetModels() {
				if m.GetName() == model && m.GetState() == pb.ModelState_MODEL_STATE_READY {
					best = ready
				}
			}
		case pb.WorkerState_WORKER_STATE_UNSPECIFIED, pb.WorkerState_WORKER_STATE_STARTING, pb.WorkerState_WORKER_STATE_NOT_READY:
		}
	}
	return best
}

// at returns the id of the worker that is shown at a host, or "".
func at(workers []*pb.FleetWorker, host string) string {
	for _, w := range workers {
		if h, _, err := net.SplitHostPort(w.GetAddress()); err == nil && h == host && w.GetConnected() {
			return w.GetReport().GetWorkerId()
		}
	}
	return ""
}

// until waits until holds is true of the fleet as shown, and returns false after limit or when ctx
// ends.
func (s *scheduler) until(ctx context.Context, limit time.Duration, holds func([]*pb.FleetWorker) bool) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		s.mu.Lock()
		workers, changed := s.workers, s.changed
		s.mu.Unlock()
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

// serving returns how many workers, apart from some, the scheduler shows as ready.
func (s *scheduler) serving(ids []string, except map[string]bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if !except[id] && stateOf(s.workers, id, s.model) == ready {
			n++
		}
	}
	return n
}

// wholeTimeout bounds the wait for a fleet to be up: a large model must be read and verified.
const wholeTimeout = 5 * time.Minute

// whole waits until every scheduler shows every worker as ready.
func (f *fleet) whole(ctx context.Context) error {
	deadline := time.Now().Add(wholeTimeout)
	for _, s := range f.schedulers {
		for _, id := range f.workers {
			isReady := func(workers []*pb.FleetWorker) bool { return stateOf(workers, id, f.model) == ready }
			for !s.until(ctx, 200*time.Millisecond, isReady) {
				if err := errors.Join(ctx.Err(), f.check()); err != nil {
					return err
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("%s has not shown %s with %s ready within %v", s.name, id, f.model, wholeTimeout)
				}
			}
		}
	}
	return nil
}

// shownTimeout bounds the wait for a scheduler to show a state.
const shownTimeout = 30 * time.Second

// shows waits until every scheduler shows a worker in a state, and fails if one did so later than
// within of the worker's step bound after since. It returns the longest time.
func (f *fleet) shows(ctx context.Context, id string, want state, since time.Time, within func(stepBound time.Duration) time.Duration) (
	slowest time.Duration, err error) {
	for _, s := range f.schedulers {
		if !s.until(ctx, shownTimeout, func(workers []*pb.FleetWorker) bool { return stateOf(workers, id, f.model) == want }) {
			return 0, fmt.Errorf("%s has not shown %s as %v within %v", s.name, id, want, shownTimeout)
		}
		s.mu.Lock()
		took, limit := s.states[id].at.Sub(since), within(s.stepBounds[id])
		s.mu.Unlock()
		if slowest = max(slowest, took); took > limit {
			return slowest, fmt.Errorf("%s showed %s as %v after %s, want within %s", s.name, id, want, seconds(took), seconds(limit))
		}
	}
	return slowest, nil
}

// extraSilence returns how much longer than other workers a silent one is waited for because its
// steps may take longer than stale, the default of the schedulers' --stale. Schedulers count
// silence in sevenths of it, and at most ten (docs/decisions/026).
func extraSilence(stepBound time.Duration) time.Duration {
	const stale, ticks, most = 1600 * time.Millisecond, 7, 10
	tick := stale / ticks
	more := int((stepBound+tick-1)/tick) - ticks
	return stale * time.Duration(min(max(more, 0), most-ticks)) / ticks
}

// seconds formats a time for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
