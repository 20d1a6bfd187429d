package vectors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// State of a codebook.
type State int

// The states of a codebook.
const (
	OnDisk State = iota + 1
	Ready
	Failed
)

// Codebook is a loaded codebook. Its exported fields are immutable.
type Codebook struct {
	Name   string
	Desc   engine.CodebookDesc
	Digest engine.Digest // the public one

	m    *Manager
	book engine.Codebook
	raw  engine.Digest // that its resident bytes must have

	mu struct {
		sync.Mutex
		problem  error // why it is out of service
		users    int
		idle     chan struct{} // not nil once it is retired; closed when users reaches 0
		verified time.Time     // end of the last check
	}
}

// Status describes a codebook on this worker.
type Status struct {
	Name        string
	State       State
	Problem     error // why it cannot be loaded, or is out of service
	Digest      engine.Digest
	Desc        engine.CodebookDesc // unset where a file cannot be read
	DeviceBytes uint64
	VerifiedAge time.Duration // since the last check of its resident bytes, above 0; 0 unless Ready
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

// acquire holds the codebook until release. ok is false if it is retired.
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

// retire stops acquire. The channel is closed when the last holder has released the codebook. Call
// it once, until restore.
func (c *Codebook) retire() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.idle = make(chan struct{})
	if c.mu.users == 0 {
		close(c.mu.idle)
	}
	return c.mu.idle
}

// restore undoes retire, because the codebook stays; problem is the reason, nil if there is none.
func (c *Codebook) restore(problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.idle = nil
	if problem != nil {
		c.mu.problem = problem
	}
}

// verify compares the resident bytes with those that were loaded. A difference takes the codebook
// out of service. If the device could not compute the digest, the bytes are not judged.
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

// Encode returns the codes of rows, which must be complete.
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

// Decode returns the codewords of codes, which must be complete.
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

// FlipBit flips one bit of the resident codewords. It is for tests of verify.
func (c *Codebook) FlipBit(bit uint64) error {
	f, ok := c.book.(engine.CodebookBitFlipper)
	if !ok {
		return fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return f.FlipBit(bit)
}

// Digest is the public digest of a codebook, from its shape and BLAKE3 of its bytes.
func Digest(d engine.CodebookDesc, raw engine.Digest) engine.Digest {
	text := []byte("millrace codebook digest v1\x00")
	for _, n := range []int{int(d.Kind), int(d.Metric), d.Dimension, d.Codewords, d.Subspaces, int(d.Type)} {
		text = binary.LittleEndian.AppendUint32(text, uint32(n))
	}
	return blake3.Sum256(append(text, raw[:]...))
}
