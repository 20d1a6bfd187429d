package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// poolSizes are the sizes of the measured allocations.
var poolSizes = []uint64{4 << 10, 1 << 20, 64 << 20, 1 << 30}

// Pool is the time to allocate and free a buffer of one size, in microseconds.
type Pool struct {
	Name string `json:"name"` // pool/4KiB
	Size uint64 `json:"size"`
	// On and Off use the engine's interface, which zeroes, with and without its pool.
	On      stats.Spread `json:"on_us"`
	Off     stats.Spread `json:"off_us"`
	Zeroing stats.Spread `json:"zeroing_us"` // of an existing buffer
	// Bare is the pool alone and Driver is cudaMalloc and cudaFree, both without zeroing; 0: not
	// measured.
	Bare   float64 `json:"bare_us,omitempty"`
	Driver float64 `json:"driver_us,omitempty"`
}

// Ratio returns the driver's time over the pool's; 0: not measured.
func (p *Pool) Ratio() float64 {
	if p.Bare <= 0 {
		return 0
	}
	return p.Driver / p.Bare
}

// pool measures a device with the pool and then one without.
func (r *run) pool(ctx context.Context) error {
	var rows []Pool
	for _, size := range poolSizes {
		if size <= r.cfg.Largest {
			rows = append(rows, Pool{Name: "pool/" + sizeName(size), Size: size})
		}
	}
	for _, on := range []bool{true, false} {
		r.progress("taking and giving back, pool %v", on)
		if err := r.withDevice(on, func(dev engine.Device) error { return r.takeAndGive(ctx, dev, on, rows) }); err != nil {
			return err
		}
	}
	for i := range rows {
		if r.report.Driver == nil {
			break
		}
		a := r.report.Driver.Allocations[rows[i].Size]
		rows[i].Bare, rows[i].Driver = a.Pool, a.Driver
	}
	r.report.Pool = rows
	return nil
}

func (r *run) takeAndGive(ctx context.Context, dev engine.Device, on bool, rows []Pool) error {
	for i := range rows {
		p := &rows[i]
		before, err := dev.Info()
		if err != nil {
			return err
		}
		taken, err := r.microseconds(ctx, func() error {
			b, err := dev.Alloc(p.Size, engine.Staging)
			if err != nil {
				return err
			}
			return b.Free()
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		after, err := dev.Info()
		if err != nil {
			return err
		}
		switch hits := after.PoolHits - before.PoolHits; {
		case hits > 0 && !on:
			return fmt.Errorf("%w: %s: %d hits of a pool that may keep nothing", ErrFailed, p.Name, hits)
		case hits == 0 && on:
			r.note("%s: the pool keeps no buffer as large", p.Name)
		}
		if !on {
			p.Off = taken
			continue
		}
		p.On = taken
		if p.Zeroing, err = r.zeroing(ctx, dev, p.Size); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

func (r *run) zeroing(ctx context.Context, dev engine.Device, size uint64) (_ stats.Spread, err error) {
	b, err := dev.Alloc(size, engine.Staging)
	if err != nil {
		return stats.Spread{}, err
	}
	defer func() { err = errors.Join(err, b.Free()) }()
	return r.microseconds(ctx, func() error { return b.Fill(0, 0, size) })
}

func (r *run) microseconds(ctx context.Context, call func() error) (stats.Spread, error) {
	seconds, err := timed(ctx, &r.cfg, call)
	return stats.SpreadOf(each(seconds, func(s float64) float64 { return 1e6 * s })), err
}
