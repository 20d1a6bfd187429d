package enginetest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/gpuworker/engine"
)

func (d *device) Stage(size int) ([]byte, func() error, error) {
	if d.hooks.Stage != nil {
		if err := d.hooks.Stage(size); err != nil {
			return nil, nil, err
		}
	}
	memory, free, err := d.stage(size)
	if err != nil {
		return nil, nil, err
	}
	return memory, func() error {
		if d.hooks.Unstage != nil {
			if err := d.hooks.Unstage(); err != nil {
				return err
			}
		}
		return free()
	}, nil
}

func (d *device) stage(size int) (memory []byte, free func() error, err error) {
	err = fmt.Errorf("stage: %w", engine.ErrUnsupported)
	if s, ok := d.Device.(engine.Stager); ok {
		memory, free, err = s.Stage(size)
	}
	if d.hooks.Stage != nil && errors.Is(err, engine.ErrUnsupported) {
		return d.stagePlain(size)
	}
	return memory, free, err
}

func (d *device) stagePlain(size int) (memory []byte, free func() error, err error) {
	if size < 1 {
		return nil, nil, fmt.Errorf("stage %d bytes: %w", size, engine.ErrInvalid)
	}
	d.plain.Add(1)
	var freed atomic.Bool
	memory = make([]byte, size)
	return memory, func() error {
		if freed.Swap(true) {
			return fmt.Errorf("staged memory is freed: %w", engine.ErrPrecondition)
		}
		clear(memory) // so that the race detector sees who still uses it
		d.plain.Add(-1)
		return nil
	}, nil
}

func (d *device) Close() error {
	if n := d.plain.Load(); n > 0 {
		return fmt.Errorf("%d pieces of staged memory live: %w", n, engine.ErrPrecondition)
	}
	return d.Device.Close()
}

var _ engine.Stager = (*device)(nil)
