package model

import (
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// requireEmpty asks that nothing is held on a device.
func requireEmpty(t *testing.T, device engine.Device) {
	t.Helper()
	info, err := device.Info()
	require.NoError(t, err)
	require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed)
	require.Zero(t, info.LiveBuffers)
	require.Zero(t, info.FailedFrees)
}

// TestPanicAmidALoadLeaksNothing has one call of the device panic in each stage of a load: the load
// fails, the ledger is empty, and the next load succeeds.
func TestPanicAmidALoadLeaksNothing(t *testing.T) {
	var armed atomic.Bool
	calls := atomic.Int64{}
	// boom panics in the given call since it was armed.
	boom := func(at int64) {
		if armed.Load() && calls.Add(1) == at {
			panic("the device's code has a bug")
		}
	}
	for name, hooks := range map[string]enginetest.Hooks{
		"first buffer": {Alloc: func(uint64, engine.Purpose) error { boom(1); return nil }},
		"later buffer": {Alloc: func(uint64, engine.Purpose) error { boom(4); return nil }},
		"host memory":  {Stage: func(int) error { boom(2); return nil }},
		"first tensor": {Bind: func(engine.TensorDesc) error { boom(1); return nil }},
		"later tensor": {Bind: func(engine.TensorDesc) error { boom(5); return nil }},
		"digest":       {Digest: func(int) error { boom(2); return nil }},
		"seal":         {Seal: func() error { boom(1); return nil }},
		"cache":        {NewRunner: func(engine.RunnerConfig) error { boom(1); return nil }},
		"first step":   {Submit: func(*engine.Step) error { boom(1); return nil }},
		"its result":   {Wait: func() error { boom(1); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
			require.NoError(t, err)
			// Two workers stage host memory twice, whatever number of processors there is.
			config := Config{Dir: folder(t), VerifyInterval: -1, UploadWorkers: 2}
			m := NewManager(config, enginetest.Intercept(device, hooks), hclog.NewNullLogger())
			calls.Store(0)
			armed.Store(true)
			_, _, err = m.Load(t.Context(), "small", Options{}, nil)
			armed.Store(false)
			require.ErrorIs(t, err, ErrPanicked)
			require.ErrorContains(t, err, "the device's code has a bug")
			requireEmpty(t, device)
			require.Zero(t, m.Leaked())

			_, _, err = m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			requireEmpty(t, device)
			require.NoError(t, device.Close())
		})
	}
}

// TestPanicOfACallerLeavesTheLoad makes the progress function of a load panic, as a handler's might.
// The load continues, as if its caller had left, and frees its memory.
func TestPanicOfACallerLeavesTheLoad(t *testing.T) {
	for stage := Reading; stage <= Loaded; stage++ {
		device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		m := NewManager(Config{Dir: folder(t), VerifyInterval: -1}, device, hclog.NewNullLogger())
		require.Panics(t, func() {
			_, _, _ = m.Load(t.Context(), "small", Options{}, func(p Progress) {
				if p.Stage >= stage {
					panic("the handler has a bug")
				}
			})
		})
		_, _, err = m.Load(t.Context(), "small", Options{}, nil)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		requireEmpty(t, device)
		require.NoError(t, device.Close())
	}
}
