package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// staging is staged host memory. The copies that use it hold its lease. Its device cannot close
// while it lives, so freeing it needs no lease of the device.
type staging struct {
	lease
	d     *Device
	p     unsafe.Pointer
	size  int
	freed atomic.Bool
}

// stagings are the live pieces of staged memory of a device.
type stagings struct {
	count atomic.Int64 // of all; grows only under a lease of the device
	mu    sync.Mutex
	all   map[*staging]struct{}
}

// Stage returns host memory that is copied to and from buffers at the full rate of the device's
// link.
func (d *Device) Stage(size int) (engine.Staged, error) {
	if size < 1 {
		return nil, fmt.Errorf("stage %d bytes: %w", size, engine.ErrInvalid)
	}
	if err := d.acquire("device"); err != nil {
		return nil, err
	}
	defer d.release()
	s := &staging{d: d, size: size}
	if err := d.t.check(C.mrt_host_alloc(d.t.api, d.h, C.uint64_t(size), &s.p)); err != nil {
		return nil, fmt.Errorf("stage %d bytes: %w", size, err)
	}
	d.staged.count.Add(1)
	d.staged.mu.Lock()
	defer d.staged.mu.Unlock()
	if d.staged.all == nil {
		d.staged.all = map[*staging]struct{}{}
	}
	d.staged.all[s] = struct{}{}
	return s, nil
}

// Bytes is the memory, and nil after Free.
func (s *staging) Bytes() []byte {
	if s.freed.Load() {
		return nil
	}
	return unsafe.Slice((*byte)(s.p), s.size)
}

// spoiled is the distance between the bytes that Free changes. To change all would cost as much as
// the upload of a load.
const spoiled = 4096

// Free waits for the copies that use the memory, changes a byte of each of its pages and frees it.
func (s *staging) Free() error {
	if err := s.close("staged memory"); err != nil {
		return err
	}
	memory := s.Bytes()
	for i := 0; i < len(memory); i += spoiled {
		memory[i]++ // a new value, even if a free is repeated
	}
	if err := s.d.t.check(C.mrt_host_free(s.d.t.api, s.d.h, s.p)); err != nil {
		s.reopen()
		return fmt.Errorf("free staged memory: %w", err)
	}
	s.freed.Store(true)
	s.d.staged.mu.Lock()
	delete(s.d.staged.all, s)
	s.d.staged.mu.Unlock()
	s.d.staged.count.Add(-1) // last: from here on the device may close
	return nil
}

// hold acquires the lease of the staged memory that p is in, if any. The caller must call the
// returned function.
func (s *stagings) hold(p []byte) (release func(), err error) {
	if s.count.Load() == 0 || len(p) == 0 {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	var refused error
	for piece := range s.all {
		if begin := uintptr(piece.p); at < begin || at >= begin+uintptr(piece.size) {
			continue
		}
		// A closed piece may be freed already, and its address may belong to another piece.
		if err := piece.acquire("staged memory"); err != nil {
			refused = err
			continue
		}
		return piece.release, nil
	}
	if refused != nil {
		return nil, refused
	}
	return func() {}, nil
}

var (
	_ engine.Stager = (*Device)(nil)
	_ engine.Staged = (*staging)(nil)
)
