package loading

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Load is one load under way. Read its events to the end, or call Leave: the load continues without
// a reader.
type Load struct {
	fleet   Fleet
	request *pb.LoadModelRequest // as sent to workers
	wanted  int
	members map[string]*fleet.Member
	events  chan *pb.LoadModelResponse
	gone    chan struct{} // closed by Leave
	leave   sync.Once
	err     error         // set before events is closed
	over    chan struct{} // closed when all copies have ended
	ended   atomic.Bool   // set by an unload: no further worker is asked

	mu      sync.Mutex
	standby []string // guarded by mu; workers not asked yet, best first
}

// Events returns the events of the workers, with their ids. The channel is closed when all copies
// have ended; Err then returns the outcome.
func (j *Load) Events() <-chan *pb.LoadModelResponse { return j.events }

// Leave ends the reading of Events.
func (j *Load) Leave() { j.leave.Do(func() { close(j.gone) }) }

// Err returns the outcome as a status, once Events is closed. A single copy's status is returned as
// it is; for several it says how many were loaded.
func (j *Load) Err() error { return j.err }

// start starts the copies. When all have ended, it returns the load's token and closes the events.
func (l *Loader) start(o Order, ids []string, members []fleet.Member) *Load {
	j := &Load{
		fleet:   l.fleet,
		request: proto.CloneOf(o.Request), wanted: o.wanted(), standby: ids, members: map[string]*fleet.Member{},
		events: make(chan *pb.LoadModelResponse, 16), gone: make(chan struct{}),
		over: make(chan struct{}),
	}
	l.mu.Lock()
	l.underWay[j] = struct{}{}
	l.mu.Unlock()
	j.request.Replicas = nil
	for i := range members {
		if m := &members[i]; slices.Contains(ids, m.Report.GetWorkerId()) {
			j.members[m.Report.GetWorkerId()] = m
		}
	}
	// No deadline: the worker would report it as its own, in other words.
	ctx, end := context.WithCancelCause(rpc.WithRequestID(l.ctx, o.ID))
	timer := time.AfterFunc(l.cfg.MaxTime, func() {
		end(fmt.Errorf("%w: the load of %q has been followed for %v and may continue at its workers: see ListModels",
			context.DeadlineExceeded, j.request.GetModel(), l.cfg.MaxTime))
	})
	failures := make([]error, j.wanted)
	var copies sync.WaitGroup
	for i := range j.wanted {
		first := j.next()
		copies.Go(func() { failures[i] = j.copy(ctx, first) })
	}
	l.wait.Go(func() {
		copies.Wait()
		l.mu.Lock()
		delete(l.underWay, j)
		l.mu.Unlock()
		close(j.over)
		timer.Stop()
		end(nil)
		j.err = j.outcome(failures)
		if j.err == nil {
			l.loaded.Add(1)
		} else {
			l.failed.Add(1)
			l.logger.Warn("model not loaded everywhere", "request_id", o.ID, "model", j.request.GetModel(), "wanted", j.wanted, "error", j.err)
		}
		<-l.tokens // before the close, so that a reader of the end may start another load
		close(j.events)
	})
	return j
}

// next removes and returns the best worker not asked yet, or "" if all were asked.
func (j *Load) next() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.standby) == 0 {
		return ""
	}
	id := j.standby[0]
	j.standby = j.standby[1:]
	return id
}

// addAsked adds the workers that the load was sent to.
func (j *Load) addAsked(workers map[string]bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id := range j.members {
		if !slices.Contains(j.standby, id) {
			workers[id] = true
		}
	}
}

// copy loads one copy: on the worker given, and if that is lost or full, on the next that could
// hold it, until an unload ends the load.
func (j *Load) copy(ctx context.Context, id string) error {
	for {
		if j.ended.Load() {
			return rpcstatus.LoadEnded(j.request.GetModel())
		}
		err := j.on(ctx, id)
		if err == nil || ctx.Err() != nil {
			return err
		}
		other := ""
		if code := status.Code(err); (code == codes.ResourceExhausted || code == codes.Unavailable) && !j.ended.Load() {
			other = j.next()
		}
		if j.wanted > 1 || other != "" {
			j.send(&pb.LoadModelResponse{WorkerId: id, Event: &pb.LoadModelResponse_Failure{Failure: &pb.LoadFailure{
				Code: int32(status.Code(err)), Message: status.Convert(err).Message(), Reason: rpc.Reason(err),
			}}})
		}
		if other == "" {
			return err
		}
		id = other
	}
}

// on loads the model on one worker and passes its events on.
func (j *Load) on(ctx context.Context, id string) error {
	link := j.members[id].Link
	if !link.Acquire() {
		return rpcstatus.LostLoading(id, errors.New("its connection ended"))
	}
	defer link.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := link.Lost()
	defer context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })()
	stream, err := pb.NewModelServiceClient(link.Conn()).LoadModel(ctx, j.request)
	if err != nil {
		return loadFailure(ctx, lost, id, err)
	}
	for result := false; ; {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && result:
			return nil
		case err != nil:
			return loadFailure(ctx, lost, id, err)
		}
		link.Heard()
		if event.GetResult() != nil {
			result = true
			awaitReady(ctx, j.fleet, id, j.request.GetModel())
		}
		event.WorkerId = id
		j.send(event)
	}
}

// loadFailure is modelFailure for a load, which may also have exceeded MaxTime.
func loadFailure(ctx, lost context.Context, id string, err error) error {
	if cause := context.Cause(ctx); lost.Err() == nil && errors.Is(cause, context.DeadlineExceeded) {
		return rpcstatus.Of(cause)
	}
	return modelFailure(lost, id, err)
}

// modelFailure distinguishes a worker that went away from one that refused; nil stays nil.
func modelFailure(lost context.Context, id string, err error) error {
	switch code := status.Code(err); {
	case err == nil:
		return nil
	case lost.Err() != nil:
		return rpcstatus.LostLoading(id, context.Cause(lost))
	case errors.Is(err, io.EOF):
		return rpcstatus.LostLoading(id, errors.New("it ended the load without a result"))
	case rpc.Info(err) == nil && (code == codes.Unavailable || code == codes.Internal), rpcstatus.RefusesScheduler(err):
		return rpcstatus.LostLoading(id, err)
	}
	return err
}

// send sends the caller an event. It drops progress if the caller is slow, and waits with other
// events.
func (j *Load) send(event *pb.LoadModelResponse) {
	if event.GetProgress() != nil {
		select {
		case j.events <- event:
		default:
		}
		return
	}
	select {
	case j.events <- event:
	case <-j.gone:
	}
}

// outcome returns the error for Err.
func (j *Load) outcome(failures []error) error {
	var first error
	loaded := 0
	for _, err := range failures {
		if err == nil {
			loaded++
		} else if first == nil {
			first = err
		}
	}
	if first == nil || j.wanted == 1 {
		return first
	}
	return rpcstatus.Incomplete(j.request.GetModel(), loaded, j.wanted, first)
}
