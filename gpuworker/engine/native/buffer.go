package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Buffer is device memory.
type Buffer struct {
	lease
	d    *Device
	t    *table
	h    *C.mr_buffer
	size uint64
}

// Size returns the bytes requested, even after Free.
func (b *Buffer) Size() uint64 { return b.size }

// WriteAt copies p to the device; it writes all of p or nothing.
func (b *Buffer) WriteAt(p []byte, off int64) (int, error) {
	if err := b.acquireAt(off); err != nil {
		return 0, err
	}
	defer b.release()
	release, err := b.d.staged.hold(p)
	if err != nil {
		return 0, fmt.Errorf("write buffer: %w", err)
	}
	defer release()
	if err := b.t.check(C.mrt_buffer_write(b.t.api, b.h, C.uint64_t(off), bytesOf(p), C.uint64_t(len(p)))); err != nil {
		return 0, fmt.Errorf("write buffer: %w", err)
	}
	return len(p), nil
}

// ReadAt copies len(p) bytes from the device, all or nothing. A range that ends outside is
// ErrInvalid, not io.EOF.
func (b *Buffer) ReadAt(p []byte, off int64) (int, error) {
	if err := b.acquireAt(off); err != nil {
		return 0, err
	}
	defer b.release()
	release, err := b.d.staged.hold(p)
	if err != nil {
		return 0, fmt.Errorf("read buffer: %w", err)
	}
	defer release()
	if err := b.t.check(C.mrt_buffer_read(b.t.api, b.h, C.uint64_t(off), bytesOf(p), C.uint64_t(len(p)))); err != nil {
		return 0, fmt.Errorf("read buffer: %w", err)
	}
	return len(p), nil
}

func (b *Buffer) acquireAt(off int64) error {
	if off < 0 {
		return fmt.Errorf("buffer offset %d is negative: %w", off, engine.ErrInvalid)
	}
	return b.acquire("buffer")
}

// CopyTo copies on the device. dst must be a buffer of the same engine.
func (b *Buffer) CopyTo(dst engine.Buffer, dstOff, srcOff, n uint64) error {
	to, err := b.t.buffer(dst)
	if err != nil {
		return err
	}
	if err := b.acquire("source buffer"); err != nil {
		return err
	}
	defer b.release()
	if err := to.acquire("destination buffer"); err != nil {
		return err
	}
	defer to.release()
	err = b.t.check(C.mrt_buffer_copy(b.t.api, to.h, C.uint64_t(dstOff), b.h, C.uint64_t(srcOff), C.uint64_t(n)))
	if err != nil {
		return fmt.Errorf("copy buffer: %w", err)
	}
	return nil
}

// Fill sets n bytes from off on to value.
func (b *Buffer) Fill(value byte, off, n uint64) error {
	if err := b.acquire("buffer"); err != nil {
		return err
	}
	defer b.release()
	if err := b.t.check(C.mrt_buffer_fill(b.t.api, b.h, C.uint64_t(off), C.uint8_t(value), C.uint64_t(n))); err != nil {
		return fmt.Errorf("fill buffer: %w", err)
	}
	return nil
}

// Digest returns BLAKE3 of n bytes from off on.
func (b *Buffer) Digest(off, n uint64) (engine.Digest, error) {
	if err := b.acquire("buffer"); err != nil {
		return engine.Digest{}, err
	}
	defer b.release()
	var out C.mr_digest
	if err := b.t.check(C.mrt_buffer_digest(b.t.api, b.h, C.uint64_t(off), C.uint64_t(n), &out)); err != nil {
		return engine.Digest{}, fmt.Errorf("digest buffer: %w", err)
	}
	return digestOf(&out), nil
}

func digestOf(in *C.mr_digest) (out engine.Digest) {
	for i, v := range in.bytes {
		out[i] = byte(v)
	}
	return out
}

// Free frees the bytes after running calls have ended. If the device refuses, the buffer is
// unchanged.
func (b *Buffer) Free() error {
	if err := b.close("buffer"); err != nil {
		return err
	}
	if err := b.t.check(C.mrt_buffer_free(b.t.api, b.h)); err != nil {
		b.reopen()
		return fmt.Errorf("free buffer: %w", err)
	}
	return nil
}

// buffer returns b as a buffer of this engine.
func (t *table) buffer(b engine.Buffer) (*Buffer, error) {
	if own, ok := b.(*Buffer); ok && own != nil && own.t.api == t.api {
		return own, nil
	}
	return nil, fmt.Errorf("%T is not a buffer of this engine: %w", b, engine.ErrInvalid)
}

var _ engine.Buffer = (*Buffer)(nil)
