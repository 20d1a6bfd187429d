package loadreport

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/rpc"
)

// every is how old a report may be.
const every = 100 * time.Millisecond

// Reporter makes reports of one server. Safe for concurrent use; nil makes none.
type Reporter struct {
	read         func() Load
	ended, wrong atomic.Int64

	mu      sync.Mutex
	rates   rates               // guarded by mu
	at      time.Time           // guarded by mu; of the last reading
	metrics *orca.ServerMetrics // guarded by mu; of then, and never changed
}

// New makes a reporter. read is called from any goroutine, and returns at once.
func New(read func() Load) *Reporter { return &Reporter{read: read} }

// Options make a server put a report into the trailer of each call that End is called for.
func (r *Reporter) Options() []grpc.ServerOption {
	if r == nil {
		return nil
	}
	return []grpc.ServerOption{orca.CallMetricsServerOption(r)}
}

// Register puts the service on a server that sends reports by stream.
func (r *Reporter) Register(on *rpc.Server) error {
	if r == nil {
		return nil
	}
	if err := orca.Register(on, orca.ServiceOptions{ServerMetricsProvider: r}); err != nil {
		return fmt.Errorf("register load reports: %w", err)
	}
	return nil
}

// wrongs are the codes of calls that a server failed, or had no room for: it is no better for having answered them soon.
var wrongs = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Internal: true, codes.Unknown: true, codes.DataLoss: true,
}

// End counts a generation that has ended, and puts what it cost into its trailer, in tokens of its prompt and tokens generated.
func (r *Reporter) End(ctx context.Context, prompt, generated int64, err error) {
	if r == nil {
		return
	}
	r.ended.Add(1)
	if wrongs[status.Code(err)] {
		r.wrong.Add(1)
	}
	if call := orca.CallMetricsRecorderFromContext(ctx); call != nil {
		call.SetRequestCost("prompt_tokens", float64(prompt))
		call.SetRequestCost("completion_tokens", float64(generated))
	}
}

// ServerMetrics implements orca.ServerMetricsProvider. What it gives is the caller's.
func (r *Reporter) ServerMetrics() *orca.ServerMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.metrics == nil || now.Sub(r.at) >= every {
		r.at, r.metrics = now, r.read().metrics()
		r.metrics.QPS, r.metrics.EPS = r.rates.add(sample{now, r.ended.Load(), r.wrong.Load()})
	}
	out := *r.metrics
	out.Utilization, out.RequestCost, out.NamedMetrics = maps.Clone(out.Utilization), maps.Clone(out.RequestCost), maps.Clone(out.NamedMetrics)
	return &out
}

var _ orca.ServerMetricsProvider = (*Reporter)(nil)
