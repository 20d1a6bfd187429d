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

// maxAge bounds the age of a report.
const maxAge = 100 * time.Millisecond

// Reporter makes the reports of one server. It is safe for concurrent use. A nil Reporter makes
// none.
type Reporter struct {
	read          func() Load
	ended, failed atomic.Int64

	mu      sync.Mutex
	rates   rates               // guarded by mu
	readAt  time.Time           // guarded by mu; when the load was read
	metrics *orca.ServerMetrics // guarded by mu; of that time; never modified
}

// New returns a reporter. read may be called from any goroutine, and must return at once.
func New(read func() Load) *Reporter { return &Reporter{read: read} }

// Options returns the server options that put a report into the trailer of each call for which End
// is called.
func (r *Reporter) Options() []grpc.ServerOption {
	if r == nil {
		return nil
	}
	return []grpc.ServerOption{orca.CallMetricsServerOption(r)}
}

// Register registers the service that streams reports.
func (r *Reporter) Register(on *rpc.Server) error {
	if r == nil {
		return nil
	}
	if err := orca.Register(on, orca.ServiceOptions{ServerMetricsProvider: r}); err != nil {
		return fmt.Errorf("register load reports: %w", err)
	}
	return nil
}

// serverErrors are the codes of calls that the server failed or had no capacity for. Answering
// those quickly does not make it a better choice.
var serverErrors = map[codes.Code]bool{
	codes.Unavailable: true, codes.ResourceExhausted: true, codes.Internal: true, codes.Unknown: true, codes.DataLoss: true,
}

// End counts a generation that has ended, and puts its cost into its trailer: the tokens of its
// prompt and the generated tokens.
func (r *Reporter) End(ctx context.Context, prompt, generated int64, err error) {
	if r == nil {
		return
	}
	r.ended.Add(1)
	if serverErrors[status.Code(err)] {
		r.failed.Add(1)
	}
	if call := orca.CallMetricsRecorderFromContext(ctx); call != nil {
		call.SetRequestCost("prompt_tokens", float64(prompt))
		call.SetRequestCost("completion_tokens", float64(generated))
	}
}

// ServerMetrics implements orca.ServerMetricsProvider. The caller owns the result.
func (r *Reporter) ServerMetrics() *orca.ServerMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.metrics == nil || now.Sub(r.readAt) >= maxAge {
		r.readAt, r.metrics = now, r.read().metrics()
		r.metrics.QPS, r.metrics.EPS = r.rates.add(sample{now, r.ended.Load(), r.failed.Load()})
	}
	out := *r.metrics
	out.Utilization, out.RequestCost, out.NamedMetrics = maps.Clone(out.Utilization), maps.Clone(out.RequestCost), maps.Clone(out.NamedMetrics)
	return &out
}

var _ orca.ServerMetricsProvider = (*Reporter)(nil)
