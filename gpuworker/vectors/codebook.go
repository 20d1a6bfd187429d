package vectors

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// State of a codebook.
type State int

// States.
const (
	OnDisk State = iota + 1
	Ready
	Failed
)

// Codebook is a loaded codebook. Its exported fields do not change.
type Codebook struct {
	Name   string
	Desc   engine.CodebookDesc
	Digest engine.Digest // that people see

	m    *Manager
	book engine.Codebook
	raw  engine.Digest // what its resident bytes must hash to

	mu struct {
		sync.Mutex
		problem  error // why it is out of service
		users    int
		idle     chan struct{} // not nil once it leaves: closed when users reaches 0
		verified time.Time     // end of the last check
	}
}

// Status is a codebook on this worker.
type Status struct {
	Name        string
	State       State
	Problem     error // why it cannot be loaded, or is out of service
	Digest      engine.Digest
	Desc        engine.CodebookDesc // unset where a file cannot be read
	DeviceBytes uint64
	VerifiedAge time.Duration // since the last check of its resident bytes, above 0; of what is not Ready 0
}

func (c *Codebook) status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Name: c.Name, State: Ready, Problem: c.mu.problem, Digest: c.Digest, Desc: c.Desc, DeviceBytes: c.Desc.Bytes()}
	if s.Problem != nil {
		s.State = Failed
		return s
	}
	s.VerifiedAge = max(time.Since(c.mu.verified), 1)
	return s
}

// acquire holds the codebook. ok is false when it leaves.
func (c *Codebook) acquire() (release func(), ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.idle != nil {
		return nil, false, nil
	}
	if c.mu.problem != nil {
		return nil, true, fmt.Errorf("%w: %q: %w", ErrFailed, c.Name, c.mu.problem)
	}
	c.mu.users++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.users--
		if c.mu.users == 0 && c.mu.idle != nil {
			close(c.mu.idle)
		}
	}), true, nil
}

// retire lets nobody acquire the codebook any more. The channel is closed when those who have it are done. Call it once, until
// restore.
func (c *Codebook) retire() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.idle = make(chan struct{})
	if c.mu.users == 0 {
		close(c.mu.idle)
	}
	return c.mu.idle
}

// restore takes retire back, with the reason why the codebook stays, nil where there is none.
func (c *Codebook) restore(problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.idle = nil
	if problem != nil {
		c.mu.problem = problem
	}
}

// verify compares the resident bytes with what was loaded; a difference takes the codebook out of service. A digest that the device
// could not compute says nothing of the bytes.
func (c *Codebook) verify() error {
	got, err := c.book.Digest()
	if err == nil && got != c.raw {
		err = fmt.Errorf("%w: %q has digest %x, loaded was %x; load it again", ErrCorrupt, c.Name, got[:8], c.raw[:8])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.mu.verified = time.Now()
	case errors.Is(err, ErrCorrupt), errors.Is(err, engine.ErrDataLoss), errors.Is(err, engine.ErrDevice):
		c.mu.problem = err
	}
	return err
}

// Encode gives the codes of rows, whole ones.
func (c *Codebook) Encode(ctx context.Context, e engine.Encoding) (engine.Codes, error) {
	if err := c.m.calls.Acquire(ctx, 1); err != nil {
		return engine.Codes{}, err
	}
	defer c.m.calls.Release(1)
	codes, err := c.book.Encode(e)
	if err != nil {
		return engine.Codes{}, refused("rows", err)
	}
	c.m.counted.encoded.Add(uint64(len(e.Rows) / (c.Desc.Dimension * e.Element.Size())))
	c.m.counted.encodedRecomputed.Add(codes.Recomputed)
	return codes, nil
}

// Decode gives the codewords of codes, whole ones.
func (c *Codebook) Decode(ctx context.Context, codes []byte) ([]byte, error) {
	if err := c.m.calls.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.m.calls.Release(1)
	rows, err := c.book.Decode(codes)
	if err != nil {
		return nil, refused("codes", err)
	}
	c.m.counted.decoded.Add(uint64(len(codes) / (c.Desc.Subspaces * c.Desc.CodeSize())))
	return rows, nil
}

// FlipBit flips one bit of the resident codewords; for tests of what then happens.
func (c *Codebook) FlipBit(bit uint64) error {
	f, ok := c.book.(engine.CodebookBitFlipper)
	if !ok {
		return fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return f.FlipBit(bit)
}
