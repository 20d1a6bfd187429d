package loadreport

import (
	"google.golang.org/grpc/orca"
)

// Load is the load of a server.
type Load struct {
	// KVBlocks counts the blocks of all KV caches, and HeldBlocks those that sequences hold.
	// HeldBlocks <= KVBlocks.
	HeldBlocks, KVBlocks int64
	// Running and Waiting count requests. Places is how many can run at once; 0: unknown.
	Running, Waiting, Places int64
	// MemoryUsed of MemoryLimit bytes of the devices are in use. MemoryLimit 0: unknown.
	MemoryUsed, MemoryLimit uint64
}

// Names of metrics for which a report has no field. Other inference servers use the same.
const (
	cacheUsage = "kv_cache_usage"
	running    = "num_requests_running"
	waiting    = "num_requests_waiting"
)

// metrics converts a load to ORCA's metrics. application_utilization is the share of held KV blocks
// plus the number of waiting requests for each place. So it exceeds 1 on a full server and grows
// with the queue.
func (l Load) metrics() *orca.ServerMetrics {
	cache := float64(l.HeldBlocks) / float64(max(l.KVBlocks, 1))
	m := &orca.ServerMetrics{
		CPUUtilization: -1, MemUtilization: -1,
		AppUtilization: cache + float64(l.Waiting)/float64(max(l.Places, 1)),
		Utilization:    map[string]float64{cacheUsage: cache},
		RequestCost:    map[string]float64{},
		NamedMetrics:   map[string]float64{running: float64(l.Running), waiting: float64(l.Waiting)},
	}
	if l.MemoryLimit > 0 {
		m.MemUtilization = min(float64(l.MemoryUsed)/float64(l.MemoryLimit), 1)
	}
	return m
}
