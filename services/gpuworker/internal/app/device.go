package app

import (
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
)

// OpenDevice opens the device that the configuration names.
func OpenDevice(c *config.Config, logger hclog.Logger) (engine.Device, error) {
	if c.Simulated() {
		o, err := sim.ParseOptions(c.Device)
		if err != nil {
			return nil, err
		}
		if limit := c.Limit(o.Memory); limit > 0 {
			o.Memory = limit
		}
		return sim.Open(o, logger)
	}
	o := native.Options{Device: c.Device, Threads: c.Threads, Path: c.CPUPath, EnginePath: c.EnginePath, AnyBuild: c.EngineAnyBuild}
	if !c.Fraction() {
		o.BytesLimit = c.Limit(0)
		return native.Open(o, logger)
	}
	// A fraction is of what the engine would take: the device has to be asked first.
	device, err := native.Open(o, hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	info, err := device.Info()
	if err := errors.Join(err, device.Close()); err != nil {
		return nil, err
	}
	o.BytesLimit = c.Limit(info.BytesTotal)
	return native.Open(o, logger)
}
