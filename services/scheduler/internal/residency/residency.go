package residency

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/ondemand"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// maxRounds bounds the loads that one request waits for. A model that is gone each time its load has
// ended competes with others for the same memory.
const maxRounds = 3

// errRefused: no load can be started; the placer's refusal gives the reason.
var errRefused = errors.New("no load can be started")

// Placer places requests on workers. Its error is ctx's cause or a *route.Refusal.
type Placer interface {
	Place(ctx context.Context, request route.Request) (*admission.Lease, error)
}

// Start starts a load of a model, with a digest unless that is empty, for the request with the id.
// Its error is a status.
type Start func(model, digest, id string) (Load, error)

// Load is a load under way.
type Load interface {
	// Events must be read to their end.
	Events() <-chan *pb.LoadModelResponse
	// Err returns how the load ended, after the last event: a status.
	Err() error
}

// By starts loads with a loader. Workers where the model is out of service are left out.
func By(l *loading.Loader) Start {
	return func(model, digest, id string) (Load, error) {
		in := &pb.LoadModelRequest{Model: model}
		if digest != "" {
			in.ExpectModelDigest = &digest
		}
		load, err := l.Start(loading.Order{Request: in, ID: id, OnDemand: true})
		if err != nil {
			return nil, err
		}
		return load, nil
	}
}

// Config bounds how long and how many requests wait.
type Config struct {
	// Timeout is how long a request waits for loads; at least 1 ns. The load continues.
	Timeout time.Duration
	// MaxWaiting is how many requests wait for the load of one model; 0 means unbounded.
	MaxWaiting int
}

// Residency is a Placer. Safe for concurrent use.
type Residency struct {
	cfg    Config
	places Placer
	start  Start
	logger hclog.Logger
	loads  ondemand.Group[key, *followed]
}

// New makes a residency in front of a placer. Close it after the loads have ended.
func New(p Placer, s Start, cfg Config, logger hclog.Logger) *Residency {
	r := &Residency{cfg: cfg, places: p, start: s, logger: logger.Named("residency")}
	r.loads.MaxWaiting, r.loads.Ended = cfg.MaxWaiting, r.ended
	return r
}

// Close waits until the loads that it follows have ended.
func (r *Residency) Close() { r.loads.Close() }

// Place places a request on a worker. If no worker serves its model and a load would help, it loads
// the model first. The error is ctx's cause, a *route.Refusal, or a status: how the load failed.
func (r *Residency) Place(ctx context.Context, request route.Request) (*admission.Lease, error) {
	generation := r.loads.Generation()
	lease, err := r.places.Place(ctx, request)
	if refusal := route.Loadable(err); refusal != nil {
		return r.placeLoaded(ctx, request, refusal, generation)
	}
	return lease, err
}

// placeLoaded is Place for a request that was refused in a generation of loads.
func (r *Residency) placeLoaded(ctx context.Context, request route.Request, refusal *route.Refusal, generation uint64) (*admission.Lease, error) {
	begin, timer := time.Now(), time.NewTimer(r.cfg.Timeout)
	defer timer.Stop()
	for round := 0; ; {
		err := r.load(ctx, key{request.Model, refusal.Digest}, generation, timer.C, begin)
		switch {
		case errors.Is(err, errRefused):
			return nil, refusal
		case err == nil:
			round++
			request.Unloaded = nil // the load has asked those workers again
		case !errors.Is(err, ondemand.ErrStale):
			return nil, err
		}
		generation = r.loads.Generation()
		lease, err := r.places.Place(ctx, request)
		if refusal = route.Loadable(err); refusal == nil || round == maxRounds {
			return lease, err
		}
	}
}

// load joins the load of a model and waits for its end, until a time. A load of another digest that
// fails does not count: the request is placed, or refused, again.
func (r *Residency) load(ctx context.Context, wanted key, generation uint64, until <-chan time.Time, begin time.Time) error {
	f, err := r.loads.Join(wanted, generation, func() (*followed, error) { return r.begin(wanted, rpc.RequestID(ctx)) })
	if errors.Is(err, ondemand.ErrCrowded) {
		return rpcstatus.TooManyAwaitLoad(wanted.model, r.cfg.MaxWaiting)
	}
	if err != nil {
		return err
	}
	err = f.Wait(ctx, until)
	switch {
	case errors.Is(err, ondemand.ErrTimeout):
		return rpcstatus.StillLoading(f.Key.model, f.Load.stage(), time.Since(begin))
	case f.Key != wanted && !errors.Is(err, context.Cause(ctx)):
		return nil
	}
	return err
}

// begin starts a load.
func (r *Residency) begin(wanted key, id string) (*followed, error) {
	load, err := r.start(wanted.model, wanted.digest, id)
	switch {
	case rpc.Reason(err) == reason.TooManyLoads:
		return nil, err
	case err != nil:
		return nil, errRefused
	}
	r.logger.Info("loading a model on demand", "model", wanted.model, "request_id", id)
	return &followed{load: load, id: id}, nil
}

// ended logs the end of a load that succeeded; the loader logs the others.
func (r *Residency) ended(f *ondemand.Flight[key, *followed], waiting int, took time.Duration, err error) {
	if err == nil {
		r.logger.Info("model loaded on demand", "model", f.Key.model, "worker", f.Load.last.Load().GetWorkerId(), "waiting", waiting,
			"request_id", f.Load.id, "took", took.Round(time.Millisecond))
	}
}
