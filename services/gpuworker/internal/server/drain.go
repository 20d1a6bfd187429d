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

// shownTimeout bounds the wait for a drain, or its end, to be told: a device that does not answer holds reports up.
const shownTimeout = time.Second

// drainer is whether an operator has the worker drain. It is told first and refuses then, so that who asks for its readiness learns of
// it before anybody is refused; it takes calls first and tells so then.
type drainer struct {
	turn    sync.Mutex // held by the Drain or Undrain under way
	told    atomic.Bool
	refuses atomic.Bool
	bound   bound
}

// join is the context of a generation: it ends when a drain's bound is reached, with errDrained. leave ends it.
func (d *drainer) join(ctx context.Context) (joined context.Context, leave func()) {
	return d.bound.join(ctx)
}

// looked tells those who wait that the worker has looked at itself and told what it saw.
type looked struct {
	mu   sync.Mutex
	next chan struct{} // guarded by mu; closed at the end of the look under way, or of the next one
}

func (l *looked) wait() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.next
}

func (l *looked) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != nil {
		close(l.next)
		l.next = nil
	}
}

// show waits until the worker's reports and its readiness say whether it drains.
func (s *Server) show(ctx context.Context, drains bool) {
	ctx, cancel := context.WithTimeout(ctx, s.shown)
	defer cancel()
	for {
		done := s.looked.wait()
		s.nudge()
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
		if look := s.look.Load(); look != nil && look.Draining == drains {
			return
		}
	}
}

// maxDrain bounds the time that an operator gives what runs: more is as long as it takes.
const maxDrain = 24 * time.Hour

// Drain implements WorkerService.
func (s *Server) Drain(ctx context.Context, in *pb.DrainRequest) (*pb.DrainResponse, error) {
	if t := in.GetTimeout(); t != nil && (t.CheckValid() != nil || t.AsDuration() < 0 || t.AsDuration() > maxDrain) {
		return nil, invalid([]rpc.Violation{{Field: "timeout", Description: fmt.Sprintf("is %v: must be in [0s, %v]", t.AsDuration(), maxDrain)}})
	}
	s.drain.turn.Lock()
	defer s.drain.turn.Unlock()
	if !s.drain.told.Swap(true) {
		s.logger.Info("worker drains", "request_id", rpc.RequestID(ctx))
	}
	s.show(ctx, true)
	s.drain.refuses.Store(true)
	s.drain.bound.clear()
	if in.GetTimeout() != nil {
		s.drain.bound.set(in.GetTimeout().AsDuration())
	}
	var sequences int
	for _, m := range s.models.Loaded() {
		sequences += m.Steps.Running + m.Steps.Waiting
	}
	return &pb.DrainResponse{Sequences: uint32(sequences)}, nil
}

// Undrain implements WorkerService.
func (s *Server) Undrain(ctx context.Context, _ *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	s.drain.turn.Lock()
	defer s.drain.turn.Unlock()
	if s.stopping.Load() {
		return nil, rpc.Fault{
			Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.WorkerStopping,
			Message: fmt.Sprintf("worker %s is stopping, which nothing takes back: start it again", s.identity.WorkerID),
		}.Err()
	}
	s.drain.bound.clear()
	s.drain.refuses.Store(false)
	if s.drain.told.Swap(false) {
		s.logger.Info("worker serves again", "request_id", rpc.RequestID(ctx))
	}
	s.show(ctx, false)
	return &pb.UndrainResponse{}, nil
}

// admit refuses what is new while the worker drains.
func (s *Server) admit() error {
	if !s.drain.refuses.Load() {
		return nil
	}
	return rpc.Fault{
		Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: reason.WorkerDraining,
		Message: fmt.Sprintf("worker %s drains: it lets end what runs and takes nothing new until an operator undrains it",
			s.identity.WorkerID),
	}.Err()
}
