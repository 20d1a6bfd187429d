package vectors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Load loads a codebook's file. already reports whether it was loaded before. expect, unless nil,
// is the digest that it must have. A codebook that is out of service is loaded again.
func (m *Manager) Load(ctx context.Context, name string, expect *engine.Digest) (s Status, already bool, err error) {
	if err := errors.Join(m.usable(), CheckName(name)); err != nil {
		return Status{}, false, err
	}
	if err := m.change.Acquire(ctx, 1); err != nil {
		return Status{}, false, err
	}
	defer m.change.Release(1)
	if c := m.loaded(name); c != nil {
		return c.status(), true, c.expected(expect)
	}
	f, closer, err := m.files.open(name)
	if err != nil {
		return Status{}, false, err
	}
	defer func() { _ = closer.Close() }() // only read
	c := &Codebook{Name: name, Desc: descOf(f.Codebook), raw: f.Digest, m: m}
	c.Digest = Digest(c.Desc, c.raw)
	if err := c.expected(expect); err != nil {
		return Status{}, false, err
	}
	if err := m.fit(fmt.Sprintf("codebook %q", name), c.Desc.Bytes(), 0, 0); err != nil {
		return Status{}, false, err
	}
	codewords := make([]byte, c.Desc.Bytes())
	if _, err := io.ReadFull(f.Data(), codewords); err != nil {
		return Status{}, false, fmt.Errorf("%w: %q: %w", ErrFile, name, err)
	}
	if got := blake3.Sum256(codewords); got != c.raw {
		return Status{}, false, fmt.Errorf("%w: %q: its codewords have digest %x, the file says %x: it is damaged, get it again", ErrFile,
			name, got[:8], c.raw[:8])
	}
	if err := m.upload(c, codewords); errors.Is(err, engine.ErrInvalid) {
		return Status{}, false, fmt.Errorf("%w: %q: %w", ErrFile, name, err)
	} else if err != nil {
		return Status{}, false, err
	}
	return c.status(), false, m.publish(ctx, c)
}

// upload copies codewords to the device and verifies them there.
func (m *Manager) upload(c *Codebook, codewords []byte) (err error) {
	if c.book, err = m.engine.NewCodebook(c.Desc, codewords); err != nil {
		return err
	}
	c.mu.verified = time.Now()
	if err := c.verify(); err != nil {
		m.discard("a codebook", c.book)
		return err
	}
	return nil
}

// publish puts a codebook into service instead of the old one of its name, after the calls of that
// have ended. The caller holds change.
func (m *Manager) publish(ctx context.Context, c *Codebook) error {
	m.mu.Lock()
	err := context.Cause(ctx)
	if m.mu.stopped {
		err = ErrStopped
	}
	if err != nil {
		m.mu.Unlock()
		m.discard("a codebook", c.book)
		return err
	}
	defer m.mu.Unlock()
	if old := m.mu.books[c.Name]; old != nil {
		idle := old.retire()
		m.work.Go(func() {
			<-idle
			m.discard("a codebook", old.book)
		})
	}
	m.mu.books[c.Name] = c
	m.logger.Info("codebook loaded", "codebook", c.Name, "digest", fmt.Sprintf("%x", c.Digest[:8]), "device_bytes", c.Desc.Bytes())
	return nil
}
