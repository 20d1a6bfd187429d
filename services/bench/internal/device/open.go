package device

import (
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/services/bench/internal/config"
)

// Limits are on the memory of a native device; the zero value leaves both to the engine.
type Limits struct {
	Bytes  uint64 // ceiling of the ledger
	NoPool bool   // freed bytes are given back at once
}

// Open opens the device, which the caller closes.
func Open(c *config.Device, logger hclog.Logger) (engine.Device, error) {
	return OpenWithin(c, Limits{}, logger)
}

// OpenWithin opens the device within limits. A sim device has its memory in its name and knows none.
func OpenWithin(c *config.Device, limits Limits, logger hclog.Logger) (engine.Device, error) {
	if c.Name == "sim" || strings.HasPrefix(c.Name, "sim:") {
		o, err := sim.ParseOptions(c.Name)
		if err != nil {
			return nil, err
		}
		return sim.Open(o, logger)
	}
	o := native.Options{
		Device: c.Name, Threads: c.Threads, Path: c.CPUPath, EnginePath: c.EnginePath, AnyBuild: c.AnyBuild,
		BytesLimit: limits.Bytes,
	}
	if limits.NoPool {
		o.PoolLimit = native.NoPool
	}
	return native.Open(o, logger)
}
