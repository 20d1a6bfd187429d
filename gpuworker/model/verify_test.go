package model

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/internal/cputest"
)

// digests are what a test sees and makes of the digests that a device computes.
type digests struct {
	count atomic.Int64
	took  atomic.Int64 // ns of each
	fails atomic.Bool
}

func (d *digests) hook(int) error {
	d.count.Add(1)
	time.Sleep(time.Duration(d.took.Load()))
	if d.fails.Load() {
		return fmt.Errorf("no scratch memory: %w", engine.ErrOutOfMemory)
	}
	return nil
}

// bubble is a test with a clock of its own, which sleeping moves, and the model "small" loaded in
// it.
type bubble struct {
	*testing.T
	m       *Manager
	inst    *Instance
	digests *digests // since the load
}

// watched runs f in a bubble whose manager checks its model every interval.
func watched(t *testing.T, interval time.Duration, f func(b *bubble)) {
	t.Helper()
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		d := &digests{}
		device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		hooked := enginetest.Intercept(device, enginetest.Hooks{Digest: d.hook})
		m := NewManager(Config{Dir: dir, VerifyInterval: interval}, hooked, hclog.NewNullLogger())
		inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
		require.NoError(t, err)
		d.count.Store(0)
		f(&bubble{t, m, inst, d})
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	})
}

func TestResidencyIsCheckedEveryMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		interval time.Duration
		passes   int64 // within an hour and a half minute
	}{
		"by default":        {0, 60},
		"every ten":         {10 * time.Minute, 6},
		"negative is never": {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, tc.interval, func(b *bubble) {
				time.Sleep(time.Hour + 30*time.Second)
				synctest.Wait()
				require.Equal(b, tc.passes*int64(len(b.inst.tensors)), b.digests.count.Load())
				age := b.m.Loaded()[0].VerifiedAge
				if tc.passes == 0 {
					require.Equal(b, time.Hour+30*time.Second, age)
				} else {
					require.Equal(b, 30*time.Second, age)
				}
				require.Equal(b, Ready, b.m.Loaded()[0].State)
			})
		})
	}
}

func TestWatchStopsAtAFlippedBit(t *testing.T) {
	// The watch finds a flipped bit and does not check that model again.
	watched(t, time.Minute, func(b *bubble) {
		name, err := b.inst.FlipBit(5, 99)
		require.NoError(b, err)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.Equal(b, Ready, b.m.Loaded()[0].State)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		status := b.m.Loaded()[0]
		require.Equal(b, Failed, status.State)
		require.ErrorIs(b, status.Problem, ErrCorrupt)
		require.ErrorContains(b, status.Problem, name)
		_, _, err = b.m.Acquire("small")
		require.ErrorIs(b, err, ErrFailed)
		require.EqualValues(b, 6, b.digests.count.Load(), "the first five are good")
		time.Sleep(time.Hour)
		require.EqualValues(b, 6, b.digests.count.Load())
		_, _, err = b.m.Load(b.Context(), "small", Options{}, nil)
		require.NoError(b, err)
		time.Sleep(2 * time.Minute)
		require.Equal(b, Ready, b.m.Loaded()[0].State)
		require.Less(b, b.m.Loaded()[0].VerifiedAge, time.Minute+time.Second)
	})
}

func TestWatchFindsAFlippedBitOnACPU(t *testing.T) {
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 2}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := NewManager(Config{Dir: folder(t), VerifyInterval: time.Millisecond}, device, hclog.NewNullLogger())
	defer func() {
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	}()
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	verified := func() time.Time {
		inst.mu.Lock()
		defer inst.mu.Unlock()
		return inst.mu.verified
	}
	loaded := verified()
	require.Eventually(t, func() bool { return verified().After(loaded) }, time.Minute, time.Millisecond)
	last := len(inst.tensors) - 1
	name, err := inst.FlipBit(last, 12345%(8*inst.sizes[last]))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return m.Loaded()[0].State == Failed }, time.Minute, time.Millisecond)
	require.ErrorIs(t, m.Loaded()[0].Problem, ErrCorrupt)
	require.ErrorContains(t, m.Loaded()[0].Problem, name)
}

func TestTheWatchYieldsToWork(t *testing.T) {
	for name, tc := range map[string]struct {
		took, rest time.Duration // of each tensor
	}{
		"it rests four times as long as it works": {100 * time.Millisecond, 400 * time.Millisecond},
		"and a second at most":                    {time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, -1, func(b *bubble) {
				b.digests.took.Store(int64(tc.took))
				pass := func() time.Duration {
					begin := time.Now()
					require.NoError(b, b.m.Verify(b.Context(), "small"))
					return time.Since(begin)
				}
				tensors := int64(len(b.inst.tensors))
				require.Equal(b, tensors*int64(tc.took), int64(pass()), "beside nobody")
				s, err := submit(b.inst.Loop, batch.Request{Prompt: []int32{1}, MaxTokens: 200, PromptTopN: -1,
					Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
				require.NoError(b, err)
				synctest.Wait() // it is paused for want of a reader, and has not ended
				require.False(b, b.inst.Loop.Idle())
				require.Equal(b, tensors*int64(tc.took+tc.rest), int64(pass()))
				s.Cancel()
				synctest.Wait()
				require.Equal(b, tensors*int64(tc.took), int64(pass()))
			})
		})
	}
}

func TestTheWatchEndsWithAnUnload(t *testing.T) {
	watched(t, time.Minute, func(b *bubble) {
		b.digests.took.Store(int64(10 * time.Second))
		time.Sleep(time.Minute + 25*time.Second) // in the third tensor of the first pass
		require.EqualValues(b, 3, b.digests.count.Load())
		begin := time.Now()
		_, err := b.m.Unload(b.Context(), "small", false)
		require.NoError(b, err)
		require.Equal(b, 5*time.Second, time.Since(begin), "it waits for that tensor and no other")
		time.Sleep(time.Hour)
		require.EqualValues(b, 3, b.digests.count.Load())
	})
}

func TestFailedDigestKeepsTheModel(t *testing.T) {
	// A digest that cannot be computed takes no model out of service.
	watched(t, time.Minute, func(b *bubble) {
		b.digests.fails.Store(true)
		time.Sleep(10*time.Minute + time.Second)
		require.EqualValues(b, 10, b.digests.count.Load(), "it is tried again each minute")
		require.Equal(b, Ready, b.m.Loaded()[0].State)
		require.Equal(b, 10*time.Minute+time.Second, b.m.Loaded()[0].VerifiedAge, "and seen not to have worked")
		require.ErrorIs(b, b.m.Verify(context.Background(), "small"), engine.ErrOutOfMemory)
		b.digests.fails.Store(false)
		time.Sleep(time.Minute)
		require.Less(b, b.m.Loaded()[0].VerifiedAge, time.Minute)
	})
}
