package vram

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/internal/cputest"
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
	require.Same(t, p.dev, a.Device())
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
	require.EqualValues(t, 1, p.Leaked())
	require.Contains(t, log.String(), "forgotten")
	_, err = p.Alloc(1, engine.Staging, "late")
	require.ErrorIs(t, err, engine.ErrPrecondition)
	require.NoError(t, dev.Close(), "nothing is left on the device")
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

func TestLeakedBufferIsCounted(t *testing.T) {
	dev, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	p := New(dev, hclog.NewNullLogger())
	kept, err := p.Alloc(1, engine.Staging, "kept")
	require.NoError(t, err)
	for _, free := range []bool{true, false, true, false} {
		b, err := p.Alloc(100, engine.Weights, "b")
		require.NoError(t, err)
		if free {
			require.NoError(t, b.Free())
		}
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return p.Leaked() == 2
	}, time.Minute, time.Millisecond)
	require.Len(t, p.Live(), 3, "they are counted until the pool closes")
	require.NoError(t, kept.Free())
	require.ErrorIs(t, p.Close(), ErrLeak)
	require.EqualValues(t, 2, p.Leaked(), "once each")
	require.NoError(t, dev.Close())
}

func TestRefusedFreeKeepsTheBuffer(t *testing.T) {
	// A free that the device refuses leaves the buffer in the pool.
	for name, open := range map[string]func(*testing.T) engine.Device{
		"sim": func(t *testing.T) engine.Device {
			t.Helper()
			dev, err := sim.Open(sim.Options{Memory: 64 << 20}, hclog.NewNullLogger())
			require.NoError(t, err)
			return dev
		},
		"cpu": func(t *testing.T) engine.Device {
			t.Helper()
			dev, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 1, BytesLimit: 64 << 20}, hclog.NewNullLogger())
			require.NoError(t, err)
			return dev
		},
	} {
		t.Run(name, func(t *testing.T) {
			dev := open(t)
			var log bytes.Buffer
			p := New(dev, hclog.New(&hclog.LoggerOptions{Output: &log}))
			agree := func(bytes, refused uint64) {
				t.Helper()
				info, err := dev.Info()
				require.NoError(t, err)
				require.Equal(t, bytes, info.BytesUsed[engine.KV])
				require.Equal(t, info.BytesUsed, p.Used(), "ledger and pool")
				require.Equal(t, refused, info.FailedFrees)
				require.Equal(t, refused, p.Refused())
				require.EqualValues(t, len(p.Live()), info.LiveBuffers)
			}
			b, err := p.Alloc(3<<20, engine.KV, "b")
			require.NoError(t, err)
			for refused := range uint64(3) {
				agree(3<<20, refused)
				require.NoError(t, dev.(engine.Refuser).Refuse(engine.RefuseFree, 0, 1))
				require.ErrorIs(t, b.Free(), engine.ErrDevice)
				require.Contains(t, log.String(), "device refused to free")
				_, err = b.WriteAt([]byte{1, 2, 3}, 7)
				require.NoError(t, err)
			}
			require.NoError(t, b.Free())
			agree(0, 3)
			require.ErrorIs(t, b.Free(), ErrFreed)
			_, err = p.Alloc(1<<20, engine.KV, "left")
			require.NoError(t, err)
			require.NoError(t, dev.(engine.Refuser).Refuse(engine.RefuseFree, 0, 1))
			require.ErrorIs(t, p.Close(), engine.ErrDevice)
			agree(1<<20, 4)
			require.ErrorIs(t, p.Close(), ErrLeak, "a second close frees what the first could not")
			agree(0, 4)
			require.NoError(t, dev.Close())
		})
	}
}

func TestRefusedAllocChangesNothing(t *testing.T) {
	// An allocation that the device refuses leaves the pool unchanged.
	p := newPool(t, 1<<20)
	require.NoError(t, p.dev.(engine.Refuser).Refuse(engine.RefuseAlloc, 0, 1))
	_, err := p.Alloc(10, engine.KV, "b")
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	require.Empty(t, p.Live())
	b, err := p.Alloc(10, engine.KV, "b")
	require.NoError(t, err)
	require.NoError(t, b.Free())
}
