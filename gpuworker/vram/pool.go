package vram

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ErrFreed means that a buffer was used after Free, Release, or the close of its pool.
var ErrFreed = fmt.Errorf("buffer is freed: %w", engine.ErrPrecondition)

// Usage is a live buffer in a pool's ledger.
type Usage struct {
	Name    string
	Size    uint64
	Purpose engine.Purpose
}

// Pool allocates named buffers of one device. It is safe for concurrent use.
type Pool struct {
	dev    engine.Device
	logger hclog.Logger
	mu     struct {
		sync.Mutex
		closed  bool
		live    map[*bufferState]struct{}
		leaked  uint64
		lost    map[*bufferState]struct{} // live buffers that were garbage collected without Free
		refused uint64
	}
}

// New returns an empty pool. The caller owns the device and closes it after the pool.
func New(dev engine.Device, logger hclog.Logger) *Pool {
	p := &Pool{dev: dev, logger: logger.Named("vram")}
	p.mu.live, p.mu.lost = map[*bufferState]struct{}{}, map[*bufferState]struct{}{}
	return p
}

// Alloc returns size zeroed bytes. Messages and Live use name. On engine.ErrOutOfMemory the pool is
// unchanged.
func (p *Pool) Alloc(size uint64, purpose engine.Purpose, name string) (*Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, fmt.Errorf("alloc %s: pool is closed: %w", name, engine.ErrPrecondition)
	}
	mem, err := p.dev.Alloc(size, purpose)
	if err != nil {
		return nil, fmt.Errorf("alloc %s: %w", name, err)
	}
	h := &bufferState{pool: p, usage: Usage{Name: name, Size: size, Purpose: purpose}}
	h.mu.mem = mem
	p.mu.live[h] = struct{}{}
	b := &Buffer{bufferState: h}
	runtime.AddCleanup(b, p.lose, h)
	return b, nil
}

// Leaked is how many buffers were garbage collected without Free, or were live when the pool was
// closed.
func (p *Pool) Leaked() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.leaked
}

// Refused is how often the device refused to free a buffer.
func (p *Pool) Refused() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.refused
}

// lose counts a buffer that was garbage collected, if it is live.
func (p *Pool) lose(h *bufferState) {
	p.mu.Lock()
	_, live := p.mu.live[h]
	if live {
		p.mu.leaked++
		p.mu.lost[h] = struct{}{}
	}
	p.mu.Unlock()
	if live {
		p.logger.Error("buffer was lost before it was freed", "buffer", h.usage.Name, "bytes", h.usage.Size)
	}
}

// Live lists the live buffers, largest first.
func (p *Pool) Live() []Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Usage, 0, len(p.mu.live))
	for b := range p.mu.live {
		out = append(out, b.usage)
	}
	slices.SortFunc(out, func(a, b Usage) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name)) })
	return out
}

// Used is the requested bytes by purpose. The device may add padding.
func (p *Pool) Used() (used [engine.PurposeCount]uint64) {
	for _, u := range p.Live() {
		used[u.Purpose] += u.Size
	}
	return used
}

// Close frees the remaining buffers and reports each of these leaks in the log and in its error,
// which matches ErrLeak.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.mu.closed = true
	left := make([]*bufferState, 0, len(p.mu.live))
	for b := range p.mu.live {
		left = append(left, b)
	}
	p.mu.Unlock()
	var errs []error
	for _, b := range left {
		switch err := b.free(); {
		case errors.Is(err, ErrFreed): // its owner freed it first
		case err != nil:
			errs = append(errs, err)
		default:
			p.leak(b)
			p.logger.Warn("buffer was never freed", "buffer", b.usage.Name, "bytes", b.usage.Size)
			errs = append(errs, fmt.Errorf("%s of %d bytes: %w", b.usage.Name, b.usage.Size, ErrLeak))
		}
	}
	return errors.Join(errs...)
}

// ErrLeak means that a buffer was still live when its pool was closed.
var ErrLeak = errors.New("buffer was never freed")

// leak counts a buffer that was live when the pool closed, unless it was counted when it was lost.
func (p *Pool) leak(h *bufferState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, counted := p.mu.lost[h]; !counted {
		p.mu.leaked++
	}
	delete(p.mu.lost, h)
}

func (p *Pool) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.refused++
}

func (p *Pool) forget(h *bufferState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.live, h)
}
