package vectors

import (
	"context"
	"errors"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Arrival is a codebook in the middle of a put. One goroutine uses it, and closes it.
type Arrival struct {
	m         *Manager
	name      string
	desc      engine.CodebookDesc
	expect    *engine.Digest
	replace   bool
	codewords []byte
	closed    bool
}

// Put starts to put a codebook into the directory and into service. It reserves device memory and,
// until Close, host memory. expect, unless nil, is the digest that the codebook must have.
func (m *Manager) Put(name string, desc engine.CodebookDesc, expect *engine.Digest, replace bool) (*Arrival, error) {
	if err := errors.Join(m.usable(), CheckName(name)); err != nil {
		return nil, err
	}
	if err := rules.CheckCodebook(desc); err != nil {
		return nil, refused("shape", err)
	}
	m.admission.Lock()
	defer m.admission.Unlock()
	info, err := m.device.Info()
	if err != nil {
		return nil, err
	}
	bytes, arriving := desc.Bytes(), m.arriving.Load()
	short := &FitError{
		What: fmt.Sprintf("codebook %q", name), Needed: bytes + arriving, Free: info.FreeOnOne(), Host: bytes, FreeHost: m.cfg.PutSpace - arriving,
	}
	if short.Needed > short.Free || short.Host > short.FreeHost {
		return nil, short
	}
	m.arriving.Store(arriving + bytes)
	return &Arrival{m: m, name: name, desc: desc, expect: expect, replace: replace}, nil
}

// Write appends the next bytes.
func (a *Arrival) Write(chunk []byte) error {
	if left := a.desc.Bytes() - uint64(len(a.codewords)); uint64(len(chunk)) > left {
		return input("chunk", "%d bytes came, and only %d of the shape's %d are missing", len(chunk), left, a.desc.Bytes())
	}
	if a.codewords == nil { // append would need twice the memory
		a.codewords = make([]byte, 0, a.desc.Bytes())
	}
	a.codewords = append(a.codewords, chunk...)
	return nil
}

// Finish writes the file and puts the codebook into service. already reports whether both were
// there before.
func (a *Arrival) Finish(ctx context.Context) (s Status, already bool, err error) {
	if got, want := uint64(len(a.codewords)), a.desc.Bytes(); got != want {
		return Status{}, false, input("chunk", "only %d of the shape's %d bytes came", got, want)
	}
	if d := Digest(a.desc, blake3.Sum256(a.codewords)); a.expect != nil && d != *a.expect {
		return Status{}, false, fmt.Errorf("%w: the bytes have %x, expected %x", ErrDigest, d, *a.expect)
	}
	defer a.Close()
	return a.m.put(ctx, a.name, a.desc, a.codewords, putOptions{replace: a.replace})
}

// Close frees the reserved memory. It may be called again.
func (a *Arrival) Close() {
	if a.closed {
		return
	}
	a.closed, a.codewords = true, nil
	a.m.admission.Lock()
	defer a.m.admission.Unlock()
	a.m.arriving.Store(a.m.arriving.Load() - a.desc.Bytes())
}

// putOptions has the options of a put.
type putOptions struct {
	replace bool
	origin  origin
}

// put writes a codebook's file and loads it. It keeps a file with the same digest.
func (m *Manager) put(ctx context.Context, name string, desc engine.CodebookDesc, codewords []byte, o putOptions) (s Status, already bool, err error) {
	if err := m.change.Acquire(ctx, 1); err != nil {
		return Status{}, false, err
	}
	defer m.change.Release(1)
	c := &Codebook{Name: name, Desc: desc, raw: blake3.Sum256(codewords), m: m}
	c.Digest = Digest(desc, c.raw)
	found, err := m.files.read(name)
	same := err == nil && found.Digest == c.Digest
	if !same && !o.replace && !errors.Is(err, ErrNotFound) {
		return Status{}, false, fmt.Errorf("%w: %q", ErrExists, name)
	}
	was := m.loaded(name)
	if was != nil && was.Digest == c.Digest && same {
		return was.status(), true, nil
	}
	if was == nil || was.Digest != c.Digest {
		if err := m.upload(c, codewords); err != nil {
			return Status{}, false, refused("chunk", err)
		}
	} else {
		c = was
	}
	if !same {
		if err := m.files.write(name, fileOf(desc, c.raw, o.origin), codewords, o.replace); err != nil {
			if c != was {
				m.discard("a codebook", c.book)
			}
			return Status{}, false, err
		}
	}
	if c == was {
		return c.status(), false, nil
	}
	return c.status(), false, m.publish(ctx, c)
}
