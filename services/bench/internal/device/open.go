package device

import (
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/services/bench/internal/config"
)

// Open opens the device, which the caller closes.
func Open(c *config.Device, logger hclog.Logger) (engine.Device, error) {
	if c.Name == "sim" || strings.HasPrefix(c.Name, "sim:") {
		o, err := sim.ParseOptions(c.Name)
		if err != nil {
			return nil, err
		}
		return sim.Open(o, logger)
	}
	return native.Open(native.Options{
		Device: c.Name, Threads: c.Threads, Path: c.CPUPath, EnginePath: c.EnginePath,
	}, logger)
}
