package sim

import (
	"fmt"
	"sync"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Buffer is memory of a simulated device. It is allocated at the first write.
type Buffer struct {
	dev     *Device
	size    uint64
	purpose engine.Purpose
	mu      struct {
		sync.RWMutex
		freed bool
		data  []byte // nil: all zero
	}
}

// Size returns the bytes requested, even after Free.
func (b *Buffer) Size() uint64 { return b.size }

// checkLocked refuses a freed buffer and a range outside it.
func (b *Buffer) checkLocked(off, n uint64) error {
	if b.mu.freed {
		return closed("buffer")
	}
	if n > b.size || off > b.size-n {
		return fmt.Errorf("%d bytes at offset %d of a buffer of %d: %w", n, off, b.size, engine.ErrInvalid)
	}
	return nil
}

func (b *Buffer) bytesLocked() []byte {
	if b.mu.data == nil {
		b.mu.data = make([]byte, b.size)
	}
	return b.mu.data
}

// WriteAt copies p to the device, all or nothing.
func (b *Buffer) WriteAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkLocked(uint64(off), uint64(len(p))); err != nil {
		return 0, err
	}
	return copy(b.bytesLocked()[off:], p), nil
}

// ReadAt copies len(p) bytes from the device, all or nothing.
func (b *Buffer) ReadAt(p []byte, off int64) (int, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.checkLocked(uint64(off), uint64(len(p))); err != nil {
		return 0, err
	}
	if b.mu.data == nil {
		clear(p)
		return len(p), nil
	}
	return copy(p, b.mu.data[off:]), nil
}

// CopyTo copies to a buffer of this engine through a copy, so that ranges may overlap.
func (b *Buffer) CopyTo(dst engine.Buffer, dstOff, srcOff, n uint64) error {
	to, ok := dst.(*Buffer)
	if !ok || to == nil {
		return fmt.Errorf("%T is not a buffer of this engine: %w", dst, engine.ErrInvalid)
	}
	to.mu.RLock()
	err := to.checkLocked(dstOff, n)
	to.mu.RUnlock()
	if err != nil {
		return err
	}
	if n > b.size {
		return fmt.Errorf("%d bytes of a buffer of %d: %w", n, b.size, engine.ErrInvalid)
	}
	between := make([]byte, n)
	if _, err := b.ReadAt(between, int64(srcOff)); err != nil {
		return err
	}
	_, err = to.WriteAt(between, int64(dstOff))
	return err
}

// Fill sets n bytes from off on to value.
func (b *Buffer) Fill(value byte, off, n uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkLocked(off, n); err != nil {
		return err
	}
	p := b.bytesLocked()[off : off+n]
	for i := range p {
		p[i] = value
	}
	return nil
}

// Digest returns BLAKE3 of n bytes from off on.
func (b *Buffer) Digest(off, n uint64) (engine.Digest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkLocked(off, n); err != nil {
		return engine.Digest{}, err
	}
	return blake3.Sum256(b.bytesLocked()[off : off+n]), nil
}

// Free frees the bytes. If it is refused, the buffer is unchanged.
func (b *Buffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.freed {
		return closed("buffer")
	}
	if b.dev.refusals.take(engine.RefuseFree) {
		b.dev.refusals.failed.Add(1)
		return fmt.Errorf("%d bytes are not taken back: %w", b.size, engine.ErrDevice)
	}
	b.mu.freed, b.mu.data = true, nil
	b.dev.give(b.size, b.purpose)
	b.dev.mu.Lock()
	b.dev.mu.buffers--
	b.dev.mu.Unlock()
	return nil
}

var _ engine.Buffer = (*Buffer)(nil)
