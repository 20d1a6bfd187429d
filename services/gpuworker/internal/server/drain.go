package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// drainReportTimeout bounds the wait until reports show a drain, or its end: a device that does not
// answer delays reports.
const drainReportTimeout = time.Second

// maxDrain bounds the time that an operator gives running calls. Without a bound they run to their
// end.
const maxDrain = 24 * time.Hour

// drainState is whether an operator drains the worker. Drain reports first and refuses then, so
// that schedulers and health checks learn of it before any call is refused. Undrain accepts first
// and reports then.
type drainState struct {
	mu       sync.Mutex // held by the Drain or Undrain that runs
	reported atomic.Bool
	refuses  atomic.Bool
	deadline drainDeadline
}

// Drain implements WorkerService.
func (s *Server) Drain(ctx context.Context, in *pb.DrainRequest) (*pb.DrainResponse, error) {
	if t := in.GetTimeout(); t != nil && (t.CheckValid() != nil || t.AsDuration() < 0 || t.AsDuration() > maxDrain) {
		return nil, invalid([]rpc.Violation{{Field: "timeout", Description: fmt.Sprintf("is %v: must be in [0s, %v]", t.AsDuration(), maxDrain)}})
	}
	s.drain.mu.Lock()
	defer s.drain.mu.Unlock()
	if !s.drain.reported.Swap(true) {
		s.logger.Info("worker drains", "request_id", rpc.RequestID(ctx))
	}
	s.awaitReport(ctx, true)
	s.drain.refuses.Store(true)
	s.drain.deadline.clear()
	if in.GetTimeout() != nil {
		s.drain.deadline.set(in.GetTimeout().AsDuration())
	}
	var sequences int
	for _, m := range s.models.Loaded() {
		sequences += m.Steps.Running + m.Steps.Waiting
	}
	return &pb.DrainResponse{Sequences: uint32(sequences)}, nil
}

// Undrain implements WorkerService.
func (s *Server) Undrain(ctx context.Context, _ *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	s.drain.mu.Lock()
	defer s.drain.mu.Unlock()
	if s.stopping.Load() {
		return nil, rpc.Error{
			Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.WorkerStopping,
			Message: fmt.Sprintf("worker %s is stopping, which cannot be undone: start it again", s.cfg.WorkerID),
		}.Err()
	}
	s.drain.deadline.clear()
	s.drain.refuses.Store(false)
	if s.drain.reported.Swap(false) {
		s.logger.Info("worker serves again", "request_id", rpc.RequestID(ctx))
	}
	s.awaitReport(ctx, false)
	return &pb.UndrainResponse{}, nil
}

// Admit refuses a new call while the worker drains.
func (s *Server) Admit() error {
	if !s.drain.refuses.Load() {
		return nil
	}
	return rpc.Error{
		Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: reason.WorkerDraining,
		Message: fmt.Sprintf("worker %s drains: running calls end, and new calls are refused until an operator undrains it", s.cfg.WorkerID),
	}.Err()
}

// awaitReport waits until the worker's reports and its readiness show whether it drains.
func (s *Server) awaitReport(ctx context.Context, drains bool) {
	ctx, cancel := context.WithTimeout(ctx, s.drainReportTimeout)
	defer cancel()
	for {
		pulse := s.pulses.next()
		s.Nudge()
		select {
		case <-pulse:
		case <-ctx.Done():
			return
		}
		if a := s.assessment.Load(); a != nil && a.Draining == drains {
			return
		}
	}
}

// pulseNotifier wakes goroutines that wait for the next pulse.
type pulseNotifier struct {
	mu struct {
		sync.Mutex
		next chan struct{} // closed at the end of the pulse that runs, or of the next one
	}
}

func (n *pulseNotifier) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.next == nil {
		n.mu.next = make(chan struct{})
	}
	return n.mu.next
}

func (n *pulseNotifier) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.next != nil {
		close(n.mu.next)
		n.mu.next = nil
	}
}

// drainDeadline cancels the running generations when the time of a drain is over. It is safe for
// concurrent use. The zero value has no deadline.
type drainDeadline struct {
	mu struct {
		sync.Mutex
		timer   *time.Timer // nil: no deadline
		passed  bool        // the timer fired and was not cleared
		cancels map[*context.CancelCauseFunc]struct{}
	}
}

// join returns a context that ends with errDrained at the deadline, unless leave is called before.
// If the deadline has passed, the context has ended: a call may pass Admit before a drain begins
// and join after its deadline.
func (d *drainDeadline) join(ctx context.Context) (joined context.Context, leave func()) {
	joined, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.cancels == nil {
		d.mu.cancels = map[*context.CancelCauseFunc]struct{}{}
	}
	d.mu.cancels[&cancel] = struct{}{}
	if d.mu.passed {
		cancel(errDrained)
	}
	return joined, func() {
		d.mu.Lock()
		delete(d.mu.cancels, &cancel)
		d.mu.Unlock()
		cancel(nil)
	}
}

// set cancels the calls that run when the time is over.
func (d *drainDeadline) set(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.mu.timer != timer { // cleared or replaced before it got the lock
			return
		}
		d.mu.passed = true
		for cancel := range d.mu.cancels {
			(*cancel)(errDrained)
		}
	})
	d.mu.timer = timer
}

// clear removes the deadline. Calls that it cancelled stay cancelled; calls that join from now on
// run.
func (d *drainDeadline) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.passed = false
	if d.mu.timer != nil {
		d.mu.timer.Stop()
		d.mu.timer = nil
	}
}
