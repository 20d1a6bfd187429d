package loading

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// Fleet is where snapshots come from.
type Fleet interface{ Snapshot() *fleet.Snapshot }

// Config bounds what is under way.
type Config struct {
	// MaxLoads bounds the loads under way: they outlive those who started them, who may come again. 0 is 64.
	MaxLoads int
	// MaxTime is how long a load is followed at the workers. It is far above what the largest model takes from a slow disk; a load
	// that is still under way then goes on at its worker. 0 is 2 h.
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

// Loads is how many loads have ended since the start, with all copies and otherwise.
func (l *Loader) Loads() (loaded, failed uint64) { return l.loaded.Load(), l.failed.Load() }

// New makes a loader over a fleet. Close it.
func New(f Fleet, cfg Config, logger hclog.Logger) *Loader {
	cfg.setDefaults()
	l := &Loader{cfg: cfg, fleet: f, logger: logger.Named("loading"), tokens: make(chan struct{}, cfg.MaxLoads),
		underWay: map[*Load]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// end has the loads of a model ask no further worker, and returns them. Loads on their workers continue until the workers get the unload.
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

// Close lets go of loads under way, which their workers finish, and waits for their goroutines.
func (l *Loader) Close() {
	l.cancel()
	l.wait.Wait()
}

// Order is what is to be loaded.
type Order struct {
	// Request is as the contract has it; its replicas are in [1, 1024].
	Request *pb.LoadModelRequest
	// ID is of the call that wants it, for the workers' logs.
	ID string
	// OnDemand leaves out workers where the model is out of service: whoever takes it in again must have seen why.
	OnDemand bool
}

// wanted is how many copies.
func (o Order) wanted() int {
	if o.Request.Replicas != nil {
		return int(o.Request.GetReplicas())
	}
	return 1
}

// Start chooses workers and begins. The error is a status.
func (l *Loader) Start(o Order) (*Load, error) {
	members, err := Reachable(l.fleet.Snapshot())
	if err != nil {
		return nil, fault.Status(err)
	}
	ids, err := choose(members, o)
	if err != nil {
		return nil, fault.Status(err)
	}
	select {
	case l.tokens <- struct{}{}:
	default:
		return nil, fault.TooManyLoadsUnderWay(cap(l.tokens))
	}
	return l.start(o, ids, members), nil
}
