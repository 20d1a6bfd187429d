package device

import (
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// Open opens the device that validated flags select. The caller must close it.
func (d *Flags) Open(logger hclog.Logger) (engine.Device, error) {
	pool, err := parsePool(d.PoolLimit)
	if err != nil {
		return nil, err
	}
	return d.open(pool, logger)
}

// OpenWithoutPool opens a device that returns freed bytes at once. The sim engine never has a pool.
func (d *Flags) OpenWithoutPool(logger hclog.Logger) (engine.Device, error) {
	return d.open(pool{none: true}, logger)
}

func (d *Flags) open(pool pool, logger hclog.Logger) (engine.Device, error) {
	limit, err := ParseAmount(d.MemoryLimit)
	if err != nil {
		return nil, err
	}
	if d.Simulated() {
		o, err := sim.ParseOptions(d.Name)
		if err != nil {
			return nil, err
		}
		if bytes := limit.Of(o.Memory); bytes > 0 {
			o.Memory = bytes
		}
		return sim.Open(o, logger)
	}
	o := native.Options{
		Device: d.Name, Threads: d.Threads, Path: d.CPUPath, EnginePath: d.EnginePath, AnyBuild: d.AnyBuild,
	}
	total := uint64(0)
	if limit.Fraction() {
		if total, err = defaultLimit(o); err != nil {
			return nil, err
		}
	}
	o.BytesLimit = limit.Of(total)
	if pool.amount.Fraction() {
		if total = o.BytesLimit; total == 0 {
			if total, err = defaultLimit(o); err != nil {
				return nil, err
			}
		}
	}
	o.PoolLimit = pool.of(total)
	return native.Open(o, logger)
}

// defaultLimit returns the engine's own memory limit, which only an open device knows.
func defaultLimit(o native.Options) (uint64, error) {
	device, err := native.Open(o, hclog.NewNullLogger())
	if err != nil {
		return 0, err
	}
	info, err := device.Info()
	return info.BytesTotal, errors.Join(err, device.Close())
}
