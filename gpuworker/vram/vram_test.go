package vram

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// newPool is a pool on a device that must be empty when the test ends.
func newPool(t *testing.T, memory uint64) *Pool {
	t.Helper()
	dev, err := sim.Open(sim.Options{Memory: memory}, hclog.NewNullLogger())
	require.NoError(t, err)
	p := New(dev, hclog.NewNullLogger())
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, dev.Close())
	})
	return p
}

func TestABufferHoldsWhatWasWritten(t *testing.T) {
	p := newPool(t, 1<<20)
	a, err := p.Alloc(1000, engine.Weights, "a")
	require.NoError(t, err)
	b, err := p.Alloc(500, engine.KV, "b")
	require.NoError(t, err)
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 200)
	n, err := a.WriteAt(data, 0)
	require.NoError(t, err)
	require.Equal(t, 1000, n)
	require.NoError(t, a.CopyTo(b, 10, 3, 490))
	require.NoError(t, a.CopyTo(a, 0, 1, 999))
	got := make([]byte, 5)
	_, err = b.ReadAt(got, 10)
	require.NoError(t, err)
	require.Equal(t, []byte{4, 5, 1, 2, 3}, got)
	digest, err := a.Digest(0, 999)
	require.NoError(t, err)
	require.Equal(t, engine.Digest(blake3.Sum256(data[1:])), digest)
	require.Equal(t, []Usage{{"a", 1000, engine.Weights}, {"b", 500, engine.KV}}, p.Live())
	require.Equal(t, [engine.PurposeCount]uint64{0, 1000, 500, 0}, p.Used())
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
	require.Empty(t, p.Live())
}

func TestRangesOutsideAreRefused(t *testing.T) {
	p := newPool(t, 1<<20)
	b, err := p.Alloc(100, engine.Staging, "b")
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Free()) }()
	for _, off := range []int64{-1, 98, math.MaxInt64, math.MinInt64} {
		_, err := b.WriteAt(make([]byte, 3), off)
		require.ErrorIs(t, err, engine.ErrInvalid)
		_, err = b.ReadAt(make([]byte, 3), off)
		require.ErrorIs(t, err, engine.ErrInvalid)
	}
	_, err = b.Digest(math.MaxUint64, 2)
	require.ErrorIs(t, err, engine.ErrInvalid)
	require.ErrorIs(t, b.CopyTo(b, 99, 0, 2), engine.ErrInvalid)
	require.ErrorIs(t, b.CopyTo(b, 0, 99, 2), engine.ErrInvalid)
}

func TestUseAfterFreeIsAnErrorWithTheBuffersName(t *testing.T) {
	p := newPool(t, 1<<20)
	b, err := p.Alloc(100, engine.Staging, "layer 3 gate")
	require.NoError(t, err)
	other, err := p.Alloc(100, engine.Staging, "other")
	require.NoError(t, err)
	require.NoError(t, b.Free())
	_, digestErr := b.Digest(0, 1)
	_, writeErr := b.WriteAt([]byte{1}, 0)
	_, readErr := b.ReadAt([]byte{1}, 0)
	_, releaseErr := b.Release()
	for _, err := range []error{b.Free(), digestErr, writeErr, readErr, releaseErr, b.CopyTo(b, 0, 0, 1), b.CopyTo(other, 0, 0, 1), other.CopyTo(b, 0, 0, 1)} {
		require.ErrorIs(t, err, ErrFreed)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.ErrorContains(t, err, "layer 3 gate")
	}
	require.NoError(t, other.Free())
}

func TestALeakIsNamedAndFreedWhenThePoolCloses(t *testing.T) {
	dev, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	var log bytes.Buffer
	p := New(dev, hclog.New(&hclog.LoggerOptions{Output: &log}))
	_, err = p.Alloc(12345, engine.Weights, "forgotten")
	require.NoError(t, err)
	err = p.Close()
	require.ErrorIs(t, err, ErrLeak)
	require.ErrorContains(t, err, "forgotten of 12345 bytes")
	require.Contains(t, log.String(), "forgotten")
	_, err = p.Alloc(1, engine.Staging, "late")
	require.ErrorIs(t, err, engine.ErrPrecondition)
	require.NoError(t, dev.Close(), "nothing is left on the device")
}

// clinging is a device that refuses to free what it gave while cling is set.
type clinging struct {
	engine.Device
	cling bool
}

func (c *clinging) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	b, err := c.Device.Alloc(size, purpose)
	return &clingingBuffer{b, c}, err
}

type clingingBuffer struct {
	engine.Buffer
	on *clinging
}

func (b *clingingBuffer) Free() error {
	if b.on.cling {
		return engine.ErrDevice
	}
	return b.Buffer.Free()
}

func TestWhatTheDeviceRefusesToFreeIsCountedOnceThePoolIsClosed(t *testing.T) {
	dev, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	clings := &clinging{Device: dev, cling: true}
	p := New(clings, hclog.NewNullLogger())
	b, err := p.Alloc(100, engine.Weights, "b")
	require.NoError(t, err)
	require.Zero(t, p.Leaked(), "its owner holds it")
	require.ErrorIs(t, p.Close(), engine.ErrDevice)
	require.Equal(t, 1, p.Leaked())
	clings.cling = false
	require.NoError(t, b.Free())
	require.Zero(t, p.Leaked())
	require.NoError(t, dev.Close())
}

func TestMemoryThatIsNotThereIsRefusedByName(t *testing.T) {
	p := newPool(t, 1000)
	_, err := p.Alloc(1001, engine.Weights, "too large")
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	require.ErrorContains(t, err, "too large")
	require.Empty(t, p.Live())
}

func TestReleaseHandsTheMemoryOver(t *testing.T) {
	p := newPool(t, 1000)
	b, err := p.Alloc(10, engine.Staging, "b")
	require.NoError(t, err)
	mem, err := b.Release()
	require.NoError(t, err)
	require.Empty(t, p.Live())
	require.ErrorIs(t, b.Free(), ErrFreed)
	require.NoError(t, mem.Free())
}

func TestUploadStreamsWithProgress(t *testing.T) {
	p := newPool(t, 1<<20)
	data := bytes.Repeat([]byte("abcdefg"), 1000)
	b, err := p.Alloc(uint64(len(data)), engine.Staging, "b")
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Free()) }()
	var seen []uint64
	src := bytes.NewReader(append(bytes.Clone(data), "and more"...))
	require.NoError(t, Upload(t.Context(), b, src, 3000, func(done uint64) { seen = append(seen, done) }))
	require.Equal(t, []uint64{3000, 6000, 7000}, seen)
	require.Equal(t, 8, src.Len(), "what is behind is not read")
	digest, err := b.Digest(0, b.Size())
	require.NoError(t, err)
	require.Equal(t, engine.Digest(blake3.Sum256(data)), digest)
	require.NoError(t, Upload(t.Context(), b, bytes.NewReader(data), 0, nil))
	require.ErrorIs(t, Upload(t.Context(), b, bytes.NewReader(data), -1, nil), engine.ErrInvalid)
}

func TestUploadStopsWhenCancelledOrWhenTheSourceEnds(t *testing.T) {
	p := newPool(t, 1<<20)
	b, err := p.Alloc(100, engine.Staging, "b")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	err = Upload(ctx, b, bytes.NewReader(make([]byte, 100)), 10, func(done uint64) {
		if done == 30 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "byte 30 of 100")
	for _, have := range []int{0, 20, 99} {
		err = Upload(t.Context(), b, bytes.NewReader(make([]byte, have)), 10, nil)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	require.NoError(t, b.Free())
	require.ErrorIs(t, Upload(t.Context(), b, bytes.NewReader(make([]byte, 100)), 10, nil), ErrFreed)
}

func TestConcurrentUseAndFree(t *testing.T) {
	p := newPool(t, 64<<20)
	for range 50 {
		a, err := p.Alloc(4096, engine.Staging, "a")
		require.NoError(t, err)
		b, err := p.Alloc(4096, engine.Staging, "b")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, pair := range [][2]*Buffer{{a, b}, {b, a}, {a, a}} {
			wg.Go(func() {
				for range 20 {
					if err := pair[0].CopyTo(pair[1], 0, 8, 1000); err != nil && !errors.Is(err, ErrFreed) {
						t.Errorf("copy: %v", err)
					}
				}
			})
		}
		wg.Go(func() { _ = a.Free() })
		wg.Go(func() { _ = b.Free() })
		wg.Wait()
	}
}
