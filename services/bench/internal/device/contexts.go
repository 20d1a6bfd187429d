package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// shared returns the reason why contexts of this device do not compete for memory, if so.
func (r *run) shared() error {
	if r.info.Kind == "cpu" && !r.cfg.Ceiling {
		return skip("the CPU engine's buffers are pages of the system, allocated on the first write: contexts do not compete for them")
	}
	return nil
}

// open opens n devices, which closeAll closes.
func (r *run) open(n int) (all []*hoard, closeAll func() error, err error) {
	closeAll = func() error {
		var errs []error
		for _, h := range all {
			errs = append(errs, h.free(), h.dev.Close())
		}
		return errors.Join(errs...)
	}
	for range n {
		dev, err := r.setup.Open(true)
		if err != nil {
			return all, closeAll, err
		}
		all = append(all, &hoard{dev: dev})
	}
	return all, closeAll, nil
}

// together lets several contexts of one process allocate everything, in turn, until each was
// refused.
func (r *run) together(ctx context.Context) (text string, err error) {
	if err := r.shared(); err != nil {
		return "", err
	}
	all, closeAll, err := r.open(r.cfg.Contexts)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return "", err
	}
	for asking := len(all); asking > 0; {
		asking = 0
		for _, h := range all {
			if h.refusal != nil {
				continue
			}
			more, err := h.alloc(r.cfg.Piece)
			if err != nil {
				return "", err
			}
			if more {
				asking++
			}
		}
	}
	sum := uint64(0)
	for _, h := range all {
		if err := h.agrees(); err != nil {
			return "", err
		}
		sum += h.bytes
		text += fmt.Sprintf("%s%d", map[bool]string{true: " + "}[text != ""], len(h.buffers))
	}
	if err := physical(ctx, all[0].dev, sum); err != nil {
		return "", err
	}
	last := all[len(all)-1]
	text = fmt.Sprintf("%s pieces of %s, then: %v", text, sizeName(r.cfg.Piece), last.refusal)
	return text, nil
}

// Values of the driver's management library (NVML) may be as old as staleness.
const (
	staleness = 5 * time.Second
	pollEvery = 100 * time.Millisecond
)

// physical compares the sum of the contexts' counters with the memory of the whole device, if NVML
// reports it.
func physical(ctx context.Context, dev engine.Device, sum uint64) error {
	for begin := time.Now(); ; {
		info, err := dev.Info()
		if err != nil {
			return err
		}
		if info.PhysicalTotal == nil || info.PhysicalFree == nil {
			return nil
		}
		taken := *info.PhysicalTotal - min(*info.PhysicalTotal, *info.PhysicalFree)
		if sum <= taken {
			return nil
		}
		if time.Since(begin) > staleness {
			return fmt.Errorf("contexts count %d bytes of their own together, and %d of %d are taken on the device", sum, taken,
				*info.PhysicalTotal)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// trimmed fills the pool of one context with freed pieces while another context holds the rest. An
// allocation of the first context that is larger than any pooled piece must then succeed by
// freeing its pool.
func (r *run) trimmed(context.Context) (text string, err error) {
	if r.info.Kind == "cpu" {
		return "", skip("the system refuses no page that its pool could give")
	}
	all, closeAll, err := r.open(2)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return "", err
	}
	keeper, taker := all[0], all[1]
	info, err := keeper.dev.Info()
	if err != nil {
		return "", err
	}
	for keeper.bytes < info.BytesFree/2 {
		if more, err := keeper.alloc(r.cfg.Piece); err != nil || !more {
			return "", errors.Join(err, keeper.refusal)
		}
	}
	pieces := len(keeper.buffers)
	if pieces < 2 {
		return "", skip("a piece of %s is half of the memory: two must fit", sizeName(r.cfg.Piece))
	}
	if err := keeper.free(); err != nil {
		return "", err
	}
	if info, err = keeper.dev.Info(); err != nil {
		return "", err
	}
	if info.BytesPooled < 2*r.cfg.Piece {
		return "", fmt.Errorf("%d bytes are pooled after %d pieces of %s were given back", info.BytesPooled, pieces,
			sizeName(r.cfg.Piece))
	}
	if err := taker.fill(r.cfg.Piece); err != nil {
		return "", err
	}
	pooled, wide := info.BytesPooled, 2*r.cfg.Piece
	if more, err := keeper.alloc(wide); err != nil || !more {
		return "", errors.Join(err, fmt.Errorf("%d bytes are pooled and %s were refused: %w", pooled, sizeName(wide),
			keeper.refusal))
	}
	if info, err = keeper.dev.Info(); err != nil {
		return "", err
	}
	if info.BytesPooled != 0 {
		return "", fmt.Errorf("%d bytes are pooled yet: the driver had more to give, and nothing was tried", info.BytesPooled)
	}
	return fmt.Sprintf("%s given out of %.2f GB pooled, while another context had the rest: %d pieces, then: %v",
		sizeName(wide), float64(pooled)/1e9, len(taker.buffers), taker.refusal), nil
}
