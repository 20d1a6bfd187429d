package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// staging is host memory that an engine gave. An engine may give the same address again once it is freed, so a second
// free must not reach it.
type staging struct {
	lease
	d *Device
	p unsafe.Pointer
}

// Stage gives host memory that buffers are written from at the full rate of the device's link.
func (d *Device) Stage(size int) (memory []byte, free func() error, err error) {
	if size < 1 {
		return nil, nil, fmt.Errorf("stage %d bytes: %w", size, engine.ErrInvalid)
	}
	if err := d.acquire("device"); err != nil {
		return nil, nil, err
	}
	defer d.release()
	s := &staging{d: d}
	if err := d.t.check(C.mrt_host_alloc(d.t.api, d.h, C.uint64_t(size), &s.p)); err != nil {
		return nil, nil, fmt.Errorf("stage %d bytes: %w", size, err)
	}
	d.staged.Add(1)
	return unsafe.Slice((*byte)(s.p), size), s.free, nil
}

func (s *staging) free() error {
	if err := s.d.acquire("device"); err != nil {
		return err
	}
	defer s.d.release()
	if err := s.close("staged memory"); err != nil {
		return err
	}
	if err := s.d.t.check(C.mrt_host_free(s.d.t.api, s.d.h, s.p)); err != nil {
		s.reopen()
		return fmt.Errorf("free staged memory: %w", err)
	}
	s.d.staged.Add(-1)
	return nil
}

var _ engine.Stager = (*Device)(nil)
