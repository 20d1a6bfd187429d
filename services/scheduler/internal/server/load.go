package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/place"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// maxReplicas is the contract's bound.
const maxReplicas = 1024

// LoadModel makes sure that as many workers as wanted have the model, and streams what they tell.
func (s *Server) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	if err := checkName(in.GetModel()); err != nil {
		return err
	}
	rpc.Annotate(stream.Context(), "model", in.GetModel())
	wanted := 1
	if in.Replicas != nil {
		wanted = int(in.GetReplicas())
	}
	if wanted < 1 || wanted > maxReplicas {
		return fault.Invalid(fmt.Sprintf("replicas is %d: must be in [1, %d]", wanted, maxReplicas),
			rpc.Violation{Field: "replicas", Description: fmt.Sprintf("must be in [1, %d]", maxReplicas)})
	}
	members, err := s.reachable()
	if err != nil {
		return err
	}
	ids, err := choose(members, in, wanted)
	if err != nil {
		return fault.Status(err)
	}
	select {
	case s.loading <- struct{}{}:
	default:
		return fault.TooManyLoadsUnderWay(cap(s.loading))
	}
	j := s.startLoad(in, wanted, ids, members, rpc.RequestID(stream.Context()))
	defer close(j.gone)
	for {
		select {
		case event, more := <-j.events:
			if !more {
				return j.err
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return fault.Status(context.Cause(stream.Context())) // the load goes on
		}
	}
}

// choose asks place for workers; those that serve another digest than the one expected are no candidates.
func choose(members []fleet.Member, in *pb.LoadModelRequest, wanted int) ([]string, error) {
	var candidates []place.Candidate
	differ := ""
	for i := range members {
		m := &members[i]
		state := m.Report.GetState()
		if state != pb.WorkerState_WORKER_STATE_READY && state != pb.WorkerState_WORKER_STATE_DEGRADED {
			continue
		}
		model, file := modelOn(m, in.GetModel()), fileOn(m, in.GetModel())
		loaded := model.GetState() == pb.ModelState_MODEL_STATE_READY || model.GetState() == pb.ModelState_MODEL_STATE_LOADING
		if want := in.GetExpectModelDigest(); loaded && want != "" && model.GetModelDigest() != "" && model.GetModelDigest() != want {
			differ = model.GetModelDigest()
			continue
		}
		candidates = append(candidates, place.Candidate{
			ID: m.Report.GetWorkerId(), Loaded: loaded, HasFile: file != nil, Problem: file.GetProblem() != "",
			Needed: file.GetNeededBytes(), Free: m.Report.GetDevice().GetBytesFree(),
		})
	}
	if len(candidates) == 0 && differ == "" {
		return nil, fmt.Errorf("%w: no worker takes requests now: try again", route.ErrNoWorker)
	}
	ids, err := place.Choose(in.GetModel(), wanted, candidates)
	if errors.Is(err, place.ErrNowhere) && differ != "" {
		return nil, fmt.Errorf("%w: model %q has digest %s and the request expects %s: unload it first, or leave expect_model_digest out",
			route.ErrDigestMismatch, in.GetModel(), differ, in.GetExpectModelDigest())
	}
	return ids, err
}

// load is one LoadModel under way; it outlives its caller, not the server and not maxLoadTime.
type load struct {
	fleet   Fleet
	request *pb.LoadModelRequest // as workers get it
	wanted  int
	members map[string]*fleet.Member
	events  chan *pb.LoadModelResponse
	gone    chan struct{} // closed when the caller reads no more
	err     error         // set before events is closed

	mu      sync.Mutex
	standby []string // guarded by mu; workers not asked yet, best first
}

// startLoad starts the copies; when all have ended the load gives its token of loading back, and events is closed.
func (s *Server) startLoad(in *pb.LoadModelRequest, wanted int, ids []string, members []fleet.Member, id string) *load {
	j := &load{
		fleet:   s.fleet,
		request: proto.CloneOf(in), wanted: wanted, standby: ids, members: map[string]*fleet.Member{},
		events: make(chan *pb.LoadModelResponse, 16), gone: make(chan struct{}),
	}
	j.request.Replicas = nil
	for i := range members {
		if m := &members[i]; slices.Contains(ids, m.Report.GetWorkerId()) {
			j.members[m.Report.GetWorkerId()] = m
		}
	}
	// No deadline: a worker would take it for its own, and say so in other words.
	ctx, end := context.WithCancelCause(requestID(s.loads, id))
	timer := time.AfterFunc(s.loadTime, func() {
		end(fmt.Errorf("%w: the load of %q has been followed for %v and may go on at its workers: see ListModels",
			context.DeadlineExceeded, in.GetModel(), s.loadTime))
	})
	failures := make([]error, wanted)
	var copies sync.WaitGroup
	for i := range wanted {
		first := j.next()
		copies.Go(func() { failures[i] = j.copy(ctx, first) })
	}
	s.wait.Go(func() {
		copies.Wait()
		timer.Stop()
		end(nil)
		j.err = j.outcome(failures)
		if j.err != nil {
			s.logger.Warn("model not loaded everywhere", "model", in.GetModel(), "wanted", wanted, "error", j.err)
		}
		<-s.loading // first, so that who hears of the end may begin another
		close(j.events)
	})
	return j
}

// next takes the best worker not asked yet, "" if there is none.
func (j *load) next() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.standby) == 0 {
		return ""
	}
	id := j.standby[0]
	j.standby = j.standby[1:]
	return id
}

// copy loads one copy: on the worker given, and if that is lost or full, on the next that could hold it.
func (j *load) copy(ctx context.Context, id string) error {
	for {
		err := j.on(ctx, id)
		if err == nil || ctx.Err() != nil {
			return err
		}
		other := ""
		if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Unavailable {
			other = j.next()
		}
		if j.wanted > 1 || other != "" {
			j.tell(&pb.LoadModelResponse{WorkerId: id, Event: &pb.LoadModelResponse_Failure{Failure: &pb.LoadFailure{
				Code: int32(status.Code(err)), Message: status.Convert(err).Message(), Reason: rpc.Reason(err),
			}}})
		}
		if other == "" {
			return err
		}
		id = other
	}
}

// on loads the model on one worker and tells what it says.
func (j *load) on(ctx context.Context, id string) error {
	link := j.members[id].Link
	if !link.Acquire() {
		return fault.LostLoading(id, errors.New("its connection ended"))
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
		j.tell(event)
	}
}

// loadFailure is modelFailure of a load that may also have been followed for too long.
func loadFailure(ctx, lost context.Context, id string, err error) error {
	if cause := context.Cause(ctx); lost.Err() == nil && errors.Is(cause, context.DeadlineExceeded) {
		return fault.Status(cause)
	}
	return modelFailure(lost, id, err)
}

// modelFailure tells a worker that went away from one that refused; nil stays nil.
func modelFailure(lost context.Context, id string, err error) error {
	switch code := status.Code(err); {
	case err == nil:
		return nil
	case lost.Err() != nil:
		return fault.LostLoading(id, context.Cause(lost))
	case errors.Is(err, io.EOF):
		return fault.LostLoading(id, errors.New("it ended the load without a result"))
	case rpc.Info(err) == nil && (code == codes.Unavailable || code == codes.Internal):
		return fault.LostLoading(id, err)
	}
	return err
}

// tell gives the caller an event. Progress is dropped for a caller that is slow, the rest waits for it.
func (j *load) tell(event *pb.LoadModelResponse) {
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

// outcome is the call's status: a single copy's own, or how many of several were loaded.
func (j *load) outcome(failures []error) error {
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
	return fault.Incomplete(j.request.GetModel(), loaded, j.wanted, first)
}
