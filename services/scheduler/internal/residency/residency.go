package residency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// maxRounds bounds the loads that one request waits for: a model that is gone each time its load has ended is one that others
// take the place of.
const maxRounds = 3

// Placer gives requests their workers; its error is ctx's cause, or a *route.Refusal.
type Placer interface {
	Place(ctx context.Context, request route.Request) (*admission.Lease, error)
}

// Start begins a load of a model, of the digest given unless that is empty, for a request with the id; its error is a status.
type Start func(model, digest, id string) (Load, error)

// Load is a load under way.
type Load interface {
	// Events are read to their end.
	Events() <-chan *pb.LoadModelResponse
	// Err is how it has ended, after the last event: a status.
	Err() error
}

// By starts loads with a loader, on workers where the model is not out of service.
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

// Config says for how long and how many requests wait.
type Config struct {
	// Timeout is how long a request waits for loads; at least 1 ns. The load goes on.
	Timeout time.Duration
	// MaxWaiting is how many requests wait for one model: as many as may wait for a place of it. 0 is no bound.
	MaxWaiting int
}

// Residency is a Placer. Safe for concurrent use.
type Residency struct {
	cfg    Config
	places Placer
	start  Start
	logger hclog.Logger
	wait   sync.WaitGroup // follows of loads

	landed   atomic.Uint64 // loads that have ended; written under mu
	mu       sync.Mutex
	flights  map[string]*flight // guarded by mu; loads under way, by model
	failures Failures[key]      // guarded by mu
}

// New makes a residency before a placer. Close it after the loads have ended.
func New(p Placer, s Start, cfg Config, logger hclog.Logger) *Residency {
	return &Residency{cfg: cfg, places: p, start: s, logger: logger.Named("residency"),
		flights: map[string]*flight{}, failures: Failures[key]{}}
}

// Close waits until what it follows has ended.
func (r *Residency) Close() { r.wait.Wait() }

// Place gives a request a worker, after its model has been loaded if need be. The error is ctx's cause, a *route.Refusal, or a
// status: how the load failed.
func (r *Residency) Place(ctx context.Context, request route.Request) (*admission.Lease, error) {
	landed := r.landed.Load()
	lease, err := r.places.Place(ctx, request)
	if refusal := route.Loadable(err); refusal != nil {
		return r.placeLoaded(ctx, request, refusal, landed)
	}
	return lease, err
}

// placeLoaded is Place for a request that was refused when so many loads had landed.
func (r *Residency) placeLoaded(ctx context.Context, request route.Request, refusal *route.Refusal, landed uint64) (*admission.Lease, error) {
	begin, timer := time.Now(), time.NewTimer(r.cfg.Timeout)
	defer timer.Stop()
	for round := 0; ; {
		wanted := key{request.Model, refusal.Digest}
		f, failed := r.join(wanted, rpc.RequestID(ctx), landed)
		switch {
		case errors.Is(failed, errOld):
		case failed != nil:
			return nil, failed
		case f == nil:
			return nil, refusal
		default:
			if err := r.await(ctx, f, wanted, timer.C, begin); err != nil {
				return nil, err
			}
			round++
			request.Unloaded = nil // the load has asked those workers anew
		}
		landed = r.landed.Load()
		lease, err := r.places.Place(ctx, request)
		if refusal = route.Loadable(err); refusal == nil || round == maxRounds {
			return lease, err
		}
	}
}

// await waits for the end of a load that the request has joined, until its time is over or ctx ends. The error is ctx's cause or a
// status; what a load of something else than is wanted failed at is none.
func (r *Residency) await(ctx context.Context, f *flight, wanted key, until <-chan time.Time, begin time.Time) error {
	defer r.leave(f)
	select {
	case <-f.over:
		if f.key != wanted {
			return nil
		}
		return f.err
	case <-until:
		return fault.StillLoading(f.key.model, f.stage(), time.Since(begin))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
