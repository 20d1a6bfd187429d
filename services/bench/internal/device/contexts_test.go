package device

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// gpu is the memory that several contexts share.
type gpu struct{ total, taken uint64 }

// fakeContext is a device of a gpu with a pool of its own, which it gives up when the driver
// refuses, unless it is stubborn.
type fakeContext struct {
	engine.Device
	gpu            *gpu
	pooled         map[uint64]int // blocks by size
	used           uint64
	live           uint64
	mute, stubborn bool // says no numbers; keeps its pool
}

func (c *fakeContext) Info() (engine.DeviceInfo, error) {
	free := c.gpu.total - c.gpu.taken
	info := engine.DeviceInfo{
		Kind: "cuda", BytesFree: c.gpu.total - c.used, LiveBuffers: c.live, BytesPooled: c.bytesPooled(),
		PhysicalTotal: &c.gpu.total, PhysicalFree: &free,
	}
	info.BytesUsed[engine.Weights] = c.used
	return info, nil
}

func (c *fakeContext) bytesPooled() (sum uint64) {
	for size, n := range c.pooled {
		sum += size * uint64(n)
	}
	return sum
}

func (c *fakeContext) Alloc(size uint64, _ engine.Purpose) (engine.Buffer, error) {
	switch {
	case c.pooled[size] > 0:
		c.pooled[size]--
	default:
		if c.gpu.taken+size > c.gpu.total && !c.stubborn {
			c.gpu.taken -= c.bytesPooled()
			clear(c.pooled)
		}
		if c.gpu.taken+size > c.gpu.total {
			if c.mute {
				return nil, fmt.Errorf("%w: sorry", engine.ErrOutOfMemory)
			}
			return nil, fmt.Errorf("%w: %d bytes asked, %d of %d bytes free", engine.ErrOutOfMemory, size, c.gpu.total-c.used, c.gpu.total)
		}
		c.gpu.taken += size
	}
	c.used += size
	c.live++
	return &fakeBuffer{context: c, size: size}, nil
}

func (c *fakeContext) Close() error {
	c.gpu.taken -= c.bytesPooled()
	clear(c.pooled)
	if c.live != 0 {
		return engine.ErrPrecondition
	}
	return nil
}

type fakeBuffer struct {
	engine.Buffer
	context *fakeContext
	size    uint64
}

func (b *fakeBuffer) Size() uint64 { return b.size }

func (b *fakeBuffer) Free() error {
	b.context.pooled[b.size]++
	b.context.used -= b.size
	b.context.live--
	return nil
}

// onFake returns a run on contexts of one fake GPU with room for some pieces.
func onFake(pieces uint64, mute, stubborn bool) (*run, *gpu) {
	g := &gpu{total: pieces * testPiece}
	open := func(bool) (engine.Device, error) {
		return &fakeContext{gpu: g, pooled: map[uint64]int{}, mute: mute, stubborn: stubborn}, nil
	}
	return &run{cfg: smallMemory(), setup: MemorySetup{Open: open}, info: engine.DeviceInfo{Kind: "cuda"}, progress: quiet}, g
}

func TestTrimCheckPassesIfThePoolIsFreed(t *testing.T) {
	r, g := onFake(8, false, false)
	text, err := r.trimmed(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, "8MiB given out of 0.02 GB pooled, while another context had the rest: 4 pieces")
	require.Zero(t, g.taken, "everything was given back")
}

func TestTrimCheckFindsAPoolThatStays(t *testing.T) {
	r, _ := onFake(8, false, true)
	_, err := r.trimmed(t.Context())
	require.ErrorContains(t, err, "16777216 bytes are pooled and 8MiB were refused")
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
}

func TestTrimCheckSkipsASmallDevice(t *testing.T) {
	r, _ := onFake(2, false, false)
	_, err := r.trimmed(t.Context())
	require.ErrorAs(t, err, new(skipped))
}

func TestContextsShareOneDevice(t *testing.T) {
	r, g := onFake(9, false, false)
	text, err := r.together(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, "5 + 4 pieces of 4MiB")
	require.Zero(t, g.taken)
}

func TestContextsCheckTheTextOfARefusal(t *testing.T) {
	r, _ := onFake(9, true, false)
	_, err := r.together(t.Context())
	require.ErrorContains(t, err, "does not say")
}
