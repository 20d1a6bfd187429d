package loading

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Fleet returns snapshots.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Config bounds the loads under way.
type Config struct {
	// MaxLoads bounds the loads under way: they outlive their callers, which may start more. 0 is
	// 64.
	MaxLoads int
	// MaxTime is how long a load is followed at its workers. It is far above the time that the
	// largest model needs from a slow disk. A load that exceeds it continues at its worker. 0 is 2
	// h.
	MaxTime time.Duration
}

func (c *Config) setDefaults() {
	if c.MaxLoads == 0 {
		c.MaxLoads = 64
	}
	if c.MaxTime == 0 {
		c.MaxTime = 2 * time.Hour
	}
}

// Loader starts loads. Safe for concurrent use.
type Loader struct {
	cfg    Config
	fleet  Fleet
	logger hclog.Logger

	ctx    context.Context // of loads; ends with Close
	cancel context.CancelFunc
	wait   sync.WaitGroup
	tokens chan struct{} // one for each load under way

	mu       sync.Mutex
	underWay map[*Load]struct{} // guarded by mu

	loaded, failed atomic.Uint64 // loads that have ended
}

// Loads returns how many loads have ended since the start, with all copies and otherwise.
func (l *Loader) Loads() (loaded, failed uint64) { return l.loaded.Load(), l.failed.Load() }

// New makes a loader over a fleet. Close it.
func New(f Fleet, cfg Config, logger hclog.Logger) *Loader {
	cfg.setDefaults()
	l := &Loader{cfg: cfg, fleet: f, logger: logger.Named("loading"), tokens: make(chan struct{}, cfg.MaxLoads),
		underWay: map[*Load]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// end marks the loads of a model, so that they ask no further worker, and returns them. They
// continue on their workers until the workers get the unload.
func (l *Loader) end(model string) []*Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ended []*Load
	for j := range l.underWay {
		if j.request.GetModel() == model {
			j.ended.Store(true)
			ended = append(ended, j)
		}
	}
	return ended
}

// Close stops following the loads under way, which their workers finish, and waits for its
// goroutines.
func (l *Loader) Close() {
	l.cancel()
	l.wait.Wait()
}

// Order describes a load.
type Order struct {
	// Request is the caller's; its replicas are in [1, 1024].
	Request *pb.LoadModelRequest
	// ID is the id of the call that wants it, for the workers' logs.
	ID string
	// OnDemand excludes workers where the model is out of service: an operator must look at it and
	// load it again.
	OnDemand bool
}

// wanted returns the number of copies.
func (o Order) wanted() int {
	if o.Request.Replicas != nil {
		return int(o.Request.GetReplicas())
	}
	return 1
}

// Start chooses workers and starts the load. The error is a status.
func (l *Loader) Start(o Order) (*Load, error) {
	members, err := Reachable(l.fleet.Snapshot())
	if err != nil {
		return nil, rpcstatus.Of(err)
	}
	ids, err := choose(members, o)
	if err != nil {
		return nil, rpcstatus.Of(err)
	}
	select {
	case l.tokens <- struct{}{}:
	default:
		return nil, rpcstatus.TooManyLoadsUnderWay(cap(l.tokens))
	}
	return l.start(o, ids, members), nil
}

// Await waits until a snapshot of the fleet shows a worker that satisfies has, or none if shown is
// false, so that a caller whose load or unload has ended finds this scheduler in agreement. It waits
// as long as fleet.Await does.
func Await(ctx context.Context, f Fleet, id string, shown bool, has func(*fleet.Member) bool) {
	fleet.Await(ctx, f, func(members []fleet.Member) bool {
		return shown == slices.ContainsFunc(members, func(m fleet.Member) bool { return m.Report.GetWorkerId() == id && has(&m) })
	})
}

// awaitReady waits until the model serves on the worker.
func awaitReady(ctx context.Context, f Fleet, id, model string) {
	Await(ctx, f, id, true, func(m *fleet.Member) bool { return m.Model(model).GetState() == pb.ModelState_MODEL_STATE_READY })
}

// awaitGone waits until the worker no longer has the model.
func awaitGone(ctx context.Context, f Fleet, id, model string) {
	Await(ctx, f, id, false, func(m *fleet.Member) bool { return m.Connected && m.Model(model) != nil })
}
