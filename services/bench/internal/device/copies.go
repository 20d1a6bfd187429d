package device

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Directions of copies, as rows and the driver's program name them.
const (
	toDevice   = "h2d"
	fromDevice = "d2h"
	onDevice   = "d2d"
)

var ways = []string{toDevice, fromDevice, onDevice}

// Kinds of host memory: any, and that of the device's Stager.
const (
	pageable = "pageable"
	pinned   = "pinned"
)

// step is the factor from one size to the next.
const step = 4

// Copy is one direction at one size.
type Copy struct {
	Name   string       `json:"name"` // h2d/pinned/64MiB
	Way    string       `json:"way"`
	Memory string       `json:"memory,omitempty"` // of the host
	Size   uint64       `json:"size"`
	Rate   stats.Spread `json:"bytes_per_second"` // reads plus writes if both are on the device
	// Driver is the rate of the driver's own call at this size; 0: unknown.
	Driver   float64 `json:"driver_bytes_per_second,omitempty"`
	OfDriver float64 `json:"of_driver,omitempty"`
	OfRoof   float64 `json:"of_roof"`
	OfPeak   float64 `json:"of_peak,omitempty"`
}

// host is the host memory of copies.
type host struct {
	from, to []byte // pageable; to is also used to compare results
	staged   []byte // nil: the device has no pinned memory, or none is free
}

// copies measures every direction, the smallest sizes first.
func (r *run) copies(ctx context.Context, dev engine.Device) (err error) {
	h := host{from: pattern(r.cfg.Largest), to: make([]byte, r.cfg.Largest)}
	if stager, ok := dev.(engine.Stager); ok {
		memory, err := stager.Stage(int(r.cfg.Largest))
		switch {
		case err == nil:
			h.staged = memory.Bytes()
			defer func() { err = errors.Join(err, memory.Free()) }()
		case errors.Is(err, engine.ErrOutOfMemory):
			r.note("no pinned memory: %v", err)
		case !errors.Is(err, engine.ErrUnsupported):
			return err
		}
	}
	a, err := dev.Alloc(r.cfg.Largest, engine.Staging)
	if err != nil {
		return fmt.Errorf("copies (--largest makes them smaller): %w", err)
	}
	defer func() { err = errors.Join(err, a.Free()) }()
	b, err := dev.Alloc(r.cfg.Largest, engine.Staging)
	if err != nil {
		return fmt.Errorf("copies (--largest makes them smaller): %w", err)
	}
	defer func() { err = errors.Join(err, b.Free()) }()
	for size := uint64(smallest); size <= r.cfg.Largest; size *= step {
		r.progress("copies of %s", sizeName(size))
		if err := h.compare(a, b, size); err != nil {
			return fmt.Errorf("copies of %s: %w", sizeName(size), err)
		}
		if err := r.copiesOf(ctx, &h, a, b, size); err != nil {
			return fmt.Errorf("copies of %s: %w", sizeName(size), err)
		}
	}
	return nil
}

func (r *run) copiesOf(ctx context.Context, h *host, a, b engine.Buffer, size uint64) error {
	for _, c := range []struct {
		way, memory string
		bytes       uint64
		call        func() error
	}{
		{toDevice, pinned, size, func() error { return written(a, h.staged[:size]) }},
		{toDevice, pageable, size, func() error { return written(a, h.from[:size]) }},
		{fromDevice, pinned, size, func() error { return readInto(h.staged[:size], a) }},
		{fromDevice, pageable, size, func() error { return readInto(h.to[:size], a) }},
		{onDevice, "", 2 * size, func() error { return a.CopyTo(b, 0, 0, size) }},
	} {
		if c.memory == pinned && h.staged == nil {
			continue
		}
		seconds, err := timed(ctx, &r.cfg, c.call)
		if err != nil {
			return err
		}
		r.report.Copies = append(r.report.Copies, Copy{
			Name: copyName(c.way, c.memory, size), Way: c.way, Memory: c.memory, Size: size,
			Rate: stats.SpreadOf(each(seconds, func(s float64) float64 { return float64(c.bytes) / s })),
		})
	}
	return nil
}

func copyName(way, memory string, size uint64) string {
	if memory == "" {
		return way + "/" + sizeName(size)
	}
	return way + "/" + memory + "/" + sizeName(size)
}

// compare copies bytes in every direction once and checks what comes back.
func (h *host) compare(a, b engine.Buffer, size uint64) error {
	from, to := h.from[:size], h.to[:size]
	sources := map[string][]byte{pageable: from}
	if h.staged != nil {
		copy(h.staged[:size], from)
		sources[pinned] = h.staged[:size]
	}
	for memory, source := range sources {
		if err := errors.Join(a.Fill(0, 0, size), b.Fill(0, 0, size), written(a, source), a.CopyTo(b, 0, 0, size)); err != nil {
			return err
		}
		clear(to)
		if err := readInto(to, b); err != nil {
			return err
		}
		if memory == pinned {
			clear(source)
			if err := readInto(source, b); err != nil {
				return err
			}
		}
		if !bytes.Equal(to, from) || !bytes.Equal(source, from) {
			return fmt.Errorf("%w: bytes sent from %s memory came back changed", ErrFailed, memory)
		}
	}
	return nil
}

func written(b engine.Buffer, from []byte) error {
	_, err := b.WriteAt(from, 0)
	return err
}

func readInto(to []byte, b engine.Buffer) error {
	_, err := b.ReadAt(to, 0)
	return err
}

// pattern returns bytes in which no part equals another.
func pattern(n uint64) []byte {
	out := make([]byte, n)
	state := uint64(1)
	for i := range out {
		if i%8 == 0 {
			state = state*6364136223846793005 + 1442695040888963407
		}
		out[i] = byte(state >> (8 * (i % 8)))
	}
	return out
}

// shares sets the shares of the copies and sorts them by direction. The roof of a direction is its
// largest measured rate.
func (r *MemoryReport) shares() {
	roofs := map[string]float64{}
	for _, way := range ways {
		roofs[way] = r.Driver.best(way)
	}
	for _, c := range r.Copies {
		roofs[c.Way] = max(roofs[c.Way], c.Rate.Median)
	}
	peaks := map[string]float64{toDevice: r.Bus.Peak, fromDevice: r.Bus.Peak}
	if r.Driver != nil {
		peaks[onDevice] = r.Driver.Peak
	}
	for i := range r.Copies {
		c := &r.Copies[i]
		c.Driver = r.Driver.copied(c.Way, c.Size)
		if c.Driver > 0 {
			c.OfDriver = c.Rate.Median / c.Driver
		}
		c.OfRoof = c.Rate.Median / roofs[c.Way]
		if peaks[c.Way] > 0 {
			c.OfPeak = c.Rate.Median / peaks[c.Way]
		}
	}
	r.Roofs = roofs
	slices.SortStableFunc(r.Copies, func(a, b Copy) int {
		return cmp.Or(slices.Index(ways, a.Way)-slices.Index(ways, b.Way), -cmp.Compare(a.Memory, b.Memory))
	})
}
