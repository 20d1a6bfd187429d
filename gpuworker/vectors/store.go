package vectors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Acquire holds a loaded codebook for a call until release. expect, unless nil, is the digest that
// it must have.
func (m *Manager) Acquire(name string, expect *engine.Digest) (*Codebook, func(), error) {
	if err := errors.Join(m.usable(), CheckName(name)); err != nil {
		return nil, nil, err
	}
	for {
		m.mu.Lock()
		c := m.mu.books[name]
		m.mu.Unlock()
		if c == nil {
			return nil, nil, m.absent(name)
		}
		if err := c.expected(expect); err != nil {
			return nil, nil, err
		}
		release, ok, err := c.acquire()
		if err != nil {
			return nil, nil, err
		}
		if ok {
			return c, release, nil
		}
		if m.current(c) {
			return nil, nil, fmt.Errorf("%w: %q is being unloaded", ErrNotLoaded, name)
		}
	}
}

// current reports whether c is still the codebook of its name.
func (m *Manager) current(c *Codebook) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.books[c.Name] == c
}

func (c *Codebook) expected(expect *engine.Digest) error {
	if expect != nil && *expect != c.Digest {
		return fmt.Errorf("%w: %q has %x, expected %x", ErrDigest, c.Name, c.Digest, *expect)
	}
	return nil
}

// absent returns why no codebook of the name is loaded.
func (m *Manager) absent(name string) error {
	if _, err := m.files.read(name); err != nil {
		return err
	}
	return fmt.Errorf("%w: %q; call LoadCodebook first", ErrNotLoaded, name)
}

// loaded returns the codebook of a name that is in service, or nil.
func (m *Manager) loaded(name string) *Codebook {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.mu.books[name]; c != nil && c.status().State == Ready {
		return c
	}
	return nil
}

// Has reports whether a codebook has the name, loaded or not.
func (m *Manager) Has(name string) bool {
	if m.usable() != nil || CheckName(name) != nil {
		return false
	}
	m.mu.Lock()
	loaded := m.mu.books[name] != nil
	m.mu.Unlock()
	if loaded {
		return true
	}
	_, err := m.files.read(name)
	return err == nil
}

// Unload unloads a codebook after the calls that use it, or returns when ctx ends. If the device
// does not take the memory back, the codebook stays, out of service, and Unload may be called
// again.
func (m *Manager) Unload(ctx context.Context, name string) (freed uint64, err error) {
	if err := errors.Join(m.usable(), CheckName(name)); err != nil {
		return 0, err
	}
	if err := m.change.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer m.change.Release(1)
	m.mu.Lock()
	c := m.mu.books[name]
	m.mu.Unlock()
	if c == nil {
		return 0, fmt.Errorf("%w: %q", ErrNotLoaded, name)
	}
	return c.Desc.Bytes(), m.takeOut(ctx, c)
}

// takeOut waits for the users of a codebook and frees it. The caller holds change.
func (m *Manager) takeOut(ctx context.Context, c *Codebook) error {
	select {
	case <-c.retire():
	case <-ctx.Done():
		c.restore(nil)
		return context.Cause(ctx)
	}
	if err := c.book.Close(); err != nil {
		c.restore(fmt.Errorf("the device does not take its memory back, unload it to try again: %w", err))
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.books, c.Name)
	return nil
}

// List returns the loaded codebooks and the files, sorted by name.
func (m *Manager) List() []Status { return Merge(m.Files(), m.Loaded()) }

// Files returns the codebook files, sorted by name. It reads the directory.
func (m *Manager) Files() []Status {
	if m.engine == nil {
		return nil
	}
	files := m.files.list()
	all := make([]Status, len(files))
	for i, f := range files {
		all[i] = Status{Name: f.Name, State: OnDisk, Problem: f.Problem, Desc: f.Desc, Digest: f.Digest}
	}
	return all
}

// Merge merges files and loaded codebooks, sorted by name. A loaded codebook replaces its file.
func Merge(files, loaded []Status) []Status {
	byName := map[string]Status{}
	for _, list := range [][]Status{files, loaded} {
		for _, s := range list {
			byName[s.Name] = s
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
}

// Loaded returns the loaded codebooks, sorted by name.
func (m *Manager) Loaded() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.mu.books))
	for _, c := range m.mu.books {
		all = append(all, c.status())
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Verify checks the resident bytes of a codebook now; a difference takes it out of service.
func (m *Manager) Verify(name string) error {
	c, release, err := m.Acquire(name, nil)
	if err != nil {
		return err
	}
	defer release()
	if err := c.verify(); err != nil {
		if c.status().State == Failed {
			m.counted.damaged.Add(1)
		}
		m.logger.Error("codebook's residency check failed", "codebook", name, "error", err)
		return err
	}
	return nil
}

// watch verifies all codebooks periodically.
func (m *Manager) watch(ctx context.Context) {
	for pause(ctx, m.cfg.VerifyInterval); ctx.Err() == nil; pause(ctx, m.cfg.VerifyInterval) {
		for _, s := range m.Loaded() {
			if s.State == Ready && ctx.Err() == nil {
				_ = m.Verify(s.Name) // logged, and visible in its state
			}
		}
	}
}
