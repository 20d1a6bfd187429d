package loadreport

import (
	"google.golang.org/grpc/orca"
)

// Load is what a server has to do.
type Load struct {
	// KVBlocks are those of all caches, and HeldBlocks those of them that sequences hold; HeldBlocks <= KVBlocks.
	HeldBlocks, KVBlocks int64
	// Running and Waiting are requests, and Places how many may run at once; 0: nobody knows.
	Running, Waiting, Places int64
	// MemoryUsed of MemoryLimit bytes of the devices are taken; a limit of 0: nobody knows.
	MemoryUsed, MemoryLimit uint64
}

// Names of what a report has no field for: those by which other servers of the field tell it.
const (
	cacheUsage = "kv_cache_usage"
	running    = "num_requests_running"
	waiting    = "num_requests_waiting"
)

// metrics are a load in ORCA's words. application_utilization is the share of KV blocks that are held and how many wait for each place
// added up, so that it passes 1 where a server is full, and grows with what waits.
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
