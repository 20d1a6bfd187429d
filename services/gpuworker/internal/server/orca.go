package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/orca"

	"github.com/millrace/millrace/gpuworker/model"
)

// Options are what the gRPC server of a worker needs besides its services: each call's trailer carries a load report.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{orca.CallMetricsServerOption(s.pressure)}
}

// reportLoad publishes the load that balancers of the field weigh by: application_utilization is the share of KV blocks
// in use plus the requests that wait for each slot, so that it passes 1 when the worker is full;
// utilization kv_cache_usage is the first part alone.
func (s *Server) reportLoad(models []model.Status) {
	var used, total, waiting, slots int
	for _, m := range models {
		if m.State == model.Failed {
			continue // its blocks and slots serve nobody
		}
		used += m.Steps.TotalBlocks - m.Steps.FreeBlocks
		total += m.Steps.TotalBlocks
		waiting += m.Steps.Waiting
		slots += m.Runner.MaxSequences
	}
	cache := float64(used) / float64(max(total, 1))
	s.pressure.SetNamedUtilization("kv_cache_usage", cache)
	s.pressure.SetApplicationUtilization(cache + float64(waiting)/float64(max(slots, 1)))
}

// reportCost puts a load report with the tokens that a call cost into its trailer.
func reportCost(ctx context.Context, prompt, generated int) {
	if r := orca.CallMetricsRecorderFromContext(ctx); r != nil {
		r.SetRequestCost("prompt_tokens", float64(prompt))
		r.SetRequestCost("completion_tokens", float64(generated))
	}
}
