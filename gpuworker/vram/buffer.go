package vram

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Buffer is named bytes in device memory. It is safe for concurrent use: Free waits for running
// calls. A Buffer that is garbage collected without Free is a leak, which its pool counts, and
// frees at Close.
type Buffer struct {
	*bufferState // the pool refers to this part only, or no Buffer would ever be collected
}

// bufferState is the part of a buffer that its pool refers to.
type bufferState struct {
	pool  *Pool
	usage Usage
	mu    struct {
		sync.RWMutex
		mem engine.Buffer // nil once freed or released
	}
}

// Name is the name given to Alloc.
func (b *bufferState) Name() string { return b.usage.Name }

// Size is the requested number of bytes, even after Free.
func (b *bufferState) Size() uint64 { return b.usage.Size }

// Device returns the device that holds the memory, also after Free.
func (b *bufferState) Device() engine.Device { return b.pool.dev }

// use runs f on the memory, or fails with ErrFreed.
func (b *bufferState) use(what string, f func(engine.Buffer) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.mu.mem == nil {
		return fmt.Errorf("%s %s: %w", what, b.usage.Name, ErrFreed)
	}
	if err := f(b.mu.mem); err != nil {
		return fmt.Errorf("%s %s: %w", what, b.usage.Name, err)
	}
	return nil
}

// check refuses a range that is not inside the buffer.
func (b *bufferState) check(what string, off, n uint64) error {
	if n > b.usage.Size || off > b.usage.Size-n {
		return fmt.Errorf("%s %s: %d bytes at offset %d of %d: %w", what, b.usage.Name, n, off, b.usage.Size, engine.ErrInvalid)
	}
	return nil
}

// WriteAt copies p to the device, all or nothing.
func (b *Buffer) WriteAt(p []byte, off int64) (n int, err error) {
	if err := b.check("write", uint64(off), uint64(len(p))); err != nil {
		return 0, err
	}
	err = b.use("write", func(mem engine.Buffer) error { n, err = mem.WriteAt(p, off); return err })
	return n, err
}

// ReadAt copies len(p) bytes from the device, all or nothing.
func (b *Buffer) ReadAt(p []byte, off int64) (n int, err error) {
	if err := b.check("read", uint64(off), uint64(len(p))); err != nil {
		return 0, err
	}
	err = b.use("read", func(mem engine.Buffer) error { n, err = mem.ReadAt(p, off); return err })
	return n, err
}

// CopyTo copies n bytes on the device; ranges may overlap when dst is b itself.
func (b *Buffer) CopyTo(dst *Buffer, dstOff, srcOff, n uint64) error {
	if err := b.check("copy from", srcOff, n); err != nil {
		return err
	}
	if err := dst.check("copy to", dstOff, n); err != nil {
		return err
	}
	if dst.bufferState == b.bufferState { // one goroutine must not lock twice
		return b.use("copy", func(mem engine.Buffer) error { return mem.CopyTo(mem, dstOff, srcOff, n) })
	}
	// Only try the locks of two buffers: copies in both directions and two frees could otherwise
	// deadlock.
	from, err := b.borrow("copy from")
	if err != nil {
		return err
	}
	defer b.mu.RUnlock()
	target, err := dst.borrow("copy to")
	if err != nil {
		return err
	}
	defer dst.mu.RUnlock()
	if err := from.CopyTo(target, dstOff, srcOff, n); err != nil {
		return fmt.Errorf("copy %s to %s: %w", b.usage.Name, dst.usage.Name, err)
	}
	return nil
}

// borrow acquires the read lock, which fails only during a Free, and returns the memory.
func (b *bufferState) borrow(what string) (engine.Buffer, error) {
	if !b.mu.TryRLock() {
		return nil, fmt.Errorf("%s %s: %w", what, b.usage.Name, ErrFreed)
	}
	if b.mu.mem == nil {
		b.mu.RUnlock()
		return nil, fmt.Errorf("%s %s: %w", what, b.usage.Name, ErrFreed)
	}
	return b.mu.mem, nil
}

// Digest is BLAKE3 of n bytes from off on.
func (b *Buffer) Digest(off, n uint64) (d engine.Digest, err error) {
	if err := b.check("digest", off, n); err != nil {
		return d, err
	}
	err = b.use("digest", func(mem engine.Buffer) error { d, err = mem.Digest(off, n); return err })
	return d, err
}

// Free frees the memory. If the device refuses, that is logged and counted, and the buffer stays in
// the ledger and may be freed again.
func (b *Buffer) Free() error {
	defer runtime.KeepAlive(b) // must not count as a leak before this returns
	return b.free()
}

func (b *bufferState) free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.mem == nil {
		return fmt.Errorf("free %s: %w", b.usage.Name, ErrFreed)
	}
	if err := b.mu.mem.Free(); err != nil {
		b.pool.refuse()
		b.pool.logger.Error("device refused to free", "buffer", b.usage.Name, "bytes", b.usage.Size, "error", err)
		return fmt.Errorf("free %s: %w", b.usage.Name, err)
	}
	b.mu.mem = nil
	b.pool.forget(b)
	return nil
}

// Release takes the memory out of the pool for a call that consumes it, such as engine.Model.Bind.
// The Buffer then counts as freed.
func (b *Buffer) Release() (engine.Buffer, error) {
	defer runtime.KeepAlive(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.mem == nil {
		return nil, fmt.Errorf("release %s: %w", b.usage.Name, ErrFreed)
	}
	mem := b.mu.mem
	b.mu.mem = nil
	b.pool.forget(b.bufferState)
	return mem, nil
}
