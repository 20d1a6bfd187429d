package model

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// gate is a hook that reports that it is reached and waits until it is opened, each time it is
// called.
type gate struct {
	reached chan struct{}
	once    sync.Once
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) pass() error {
	g.once.Do(func() { close(g.reached) })
	<-g.open
	return nil
}

// loading begins a load of "small" and returns how it ends.
func loading(m *Manager, o Options) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, _, err := m.Load(context.Background(), "small", o, nil)
		ended <- err
	}()
	return ended
}

func listed(m *Manager) int { return len(m.Loaded()) }

// Unload ends a load that waits for its turn: its callers get ErrLoadEnded, and no model is there.
func TestUnloadEndsWaitingLoad(t *testing.T) {
	m, _ := manager(t, 1<<30)
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1))
	first := loading(m, Options{})
	require.Eventually(t, func() bool { return listed(m) == 1 }, time.Minute, time.Millisecond)
	second, stages := make(chan error, 1), make(chan Stage, 100)
	go func() {
		_, _, err := m.Load(context.Background(), "small", Options{}, func(p Progress) { stages <- p.Stage })
		second <- err
	}()
	require.Equal(t, Queued, <-stages)
	done, err := m.Unload(t.Context(), "small", false)
	require.NoError(t, err)
	require.Equal(t, UnloadResult{LoadEnded: true}, done)
	require.Zero(t, listed(m))
	require.ErrorIs(t, <-first, ErrLoadEnded)
	m.loadSlot.Release(1)
	require.ErrorIs(t, <-second, ErrLoadEnded, "it had joined the first")
	_, err = m.Unload(t.Context(), "family/other", false)
	require.ErrorIs(t, err, ErrNotLoaded)
	_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err, "it may be loaded again")
}

// Unload ends a load at each of its stages. Where that stage cannot be ended, the model is unloaded
// when it is there.
func TestUnloadEndsLoadAtEachStage(t *testing.T) {
	for name, hook := range map[string]func(*gate) enginetest.Hooks{
		"binding": func(g *gate) enginetest.Hooks {
			return enginetest.Hooks{Bind: func(engine.TensorDesc) error { return g.pass() }}
		},
		"verifying": func(g *gate) enginetest.Hooks { return enginetest.Hooks{Digest: func(int) error { return g.pass() }} },
		"warming":   func(g *gate) enginetest.Hooks { return enginetest.Hooks{Wait: g.pass} },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
			require.NoError(t, err)
			m := managerOf(t, enginetest.Intercept(device, hook(g)))
			ended := loading(m, Options{})
			<-g.reached
			ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer leave()
			_, err = m.Unload(ctx, "small", false)
			require.ErrorIs(t, err, context.DeadlineExceeded, "the stage is under way")
			close(g.open)
			done, err := m.Unload(t.Context(), "small", false)
			if err != nil {
				require.ErrorIs(t, err, ErrNotLoaded, "the first call has ended it")
			}
			require.Zero(t, listed(m))
			if err := <-ended; err != nil {
				require.ErrorIs(t, err, ErrLoadEnded)
				require.Zero(t, done.Freed)
			}
			require.Zero(t, listed(m))
		})
	}
}

// A load waits for the requests of the model that it replaces. Unload ends the load, and waits for
// those requests itself.
func TestUnloadEndsLoadBehindDrainingModel(t *testing.T) {
	m, _ := manager(t, 1<<30)
	old, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	_, release, err := m.Acquire("small")
	require.NoError(t, err)
	old.drain()
	ended := loading(m, Options{})
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.mu.loads["small"] != nil
	}, time.Minute, time.Millisecond)
	unloaded := make(chan UnloadResult)
	go func() {
		done, err := m.Unload(context.Background(), "small", false)
		if err == nil {
			unloaded <- done
		}
		close(unloaded)
	}()
	require.ErrorIs(t, <-ended, ErrLoadEnded)
	require.Equal(t, 1, listed(m), "a request still runs")
	release()
	require.Equal(t, UnloadResult{Freed: old.DeviceBytes, LoadEnded: true}, <-unloaded)
	require.Zero(t, listed(m))
}

// Unload continues when its caller leaves: a model whose load was too far to be ended is unloaded
// after its load.
func TestUnloadContinuesWithoutItsCaller(t *testing.T) {
	g := newGate()
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := managerOf(t, enginetest.Intercept(device, enginetest.Hooks{Wait: g.pass}))
	ended := loading(m, Options{})
	<-g.reached
	ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer leave()
	_, err = m.Unload(ctx, "small", false)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(g.open)
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool { return listed(m) == 0 }, 10*time.Second, time.Millisecond)
}
