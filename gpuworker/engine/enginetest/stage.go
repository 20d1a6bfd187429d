package enginetest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/gpuworker/engine"
)

func (d *device) Stage(size int) (engine.Staged, error) {
	if d.hooks.Stage != nil {
		if err := d.hooks.Stage(size); err != nil {
			return nil, err
		}
	}
	memory, err := d.stage(size)
	if err != nil || d.hooks.Unstage == nil {
		return memory, err
	}
	return &hookedStaged{Staged: memory, unstage: d.hooks.Unstage}, nil
}

func (d *device) stage(size int) (engine.Staged, error) {
	err := fmt.Errorf("stage: %w", engine.ErrUnsupported)
	if s, ok := d.Device.(engine.Stager); ok {
		var memory engine.Staged
		if memory, err = s.Stage(size); err == nil {
			return memory, nil
		}
	}
	if d.hooks.Stage == nil || !errors.Is(err, engine.ErrUnsupported) {
		return nil, err
	}
	if size < 1 {
		return nil, fmt.Errorf("stage %d bytes: %w", size, engine.ErrInvalid)
	}
	d.plain.Add(1)
	return &plainStaged{d: d, memory: make([]byte, size)}, nil
}

// hookedStaged calls a hook before it is freed.
type hookedStaged struct {
	engine.Staged
	unstage func() error
}

func (s *hookedStaged) Free() error {
	if err := s.unstage(); err != nil {
		return err
	}
	return s.Staged.Free()
}

// plainStaged is memory of the Go heap.
type plainStaged struct {
	d      *device
	memory []byte
	freed  atomic.Bool
}

func (s *plainStaged) Bytes() []byte {
	if s.freed.Load() {
		return nil
	}
	return s.memory
}

func (s *plainStaged) Free() error {
	if s.freed.Swap(true) {
		return fmt.Errorf("staged memory is freed: %w", engine.ErrPrecondition)
	}
	clear(s.memory) // so that the race detector reports late uses
	s.d.plain.Add(-1)
	return nil
}

func (d *device) Close() error {
	if n := d.plain.Load(); n > 0 {
		return fmt.Errorf("%d pieces of staged memory live: %w", n, engine.ErrPrecondition)
	}
	return d.Device.Close()
}

var _ engine.Stager = (*device)(nil)
