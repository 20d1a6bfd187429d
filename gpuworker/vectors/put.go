package vectors

import (
	"context"
	"errors"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Arrival is a codebook whose bytes are on their way. One goroutine uses it, and closes it.
type Arrival struct {
	m         *Manager
	name      string
	desc      engine.CodebookDesc
	expect    *engine.Digest
	replace   bool
	codewords []byte
	closed    bool
}

// Put begins to bring a codebook to the directory and into service: device memory and, until Close, host memory for it are set aside.
// expect, unless nil, is the
// digest that it must have.
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

// Write takes the next bytes.
func (a *Arrival) Write(chunk []byte) error {
	if left := a.desc.Bytes() - uint64(len(a.codewords)); uint64(len(chunk)) > left {
		return input("chunk", "%d bytes come where %d are left of the %d that the shape says", len(chunk), left, a.desc.Bytes())
	}
	if a.codewords == nil { // growing by append would take twice as much
		a.codewords = make([]byte, 0, a.desc.Bytes())
	}
	a.codewords = append(a.codewords, chunk...)
	return nil
}

// Finish writes the file and puts the codebook into service; already says that both were there.
func (a *Arrival) Finish(ctx context.Context) (s Status, already bool, err error) {
	if got, want := uint64(len(a.codewords)), a.desc.Bytes(); got != want {
		return Status{}, false, input("chunk", "%d bytes came of the %d that the shape says", got, want)
	}
	if d := Digest(a.desc, blake3.Sum256(a.codewords)); a.expect != nil && d != *a.expect {
		return Status{}, false, fmt.Errorf("%w: the bytes have %x, expected %x", ErrDigest, d, *a.expect)
	}
	defer a.Close()
	return a.m.put(ctx, a.name, a.desc, a.codewords, putOptions{replace: a.replace})
}

// Close gives up what was set aside. Closing again does nothing.
func (a *Arrival) Close() {
	if a.closed {
		return
	}
	a.closed, a.codewords = true, nil
	a.m.admission.Lock()
	defer a.m.admission.Unlock()
	a.m.arriving.Store(a.m.arriving.Load() - a.desc.Bytes())
}

// putOptions are how a codebook is put.
type putOptions struct {
	replace bool
	origin  origin
}

// put writes a codebook's file and brings it into service. A file with the same digest is left as it is.
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
		if err := m.bring(c, codewords); err != nil {
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
