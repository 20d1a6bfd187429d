package model

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// keeping returns a manager in a synctest bubble. The device has room for this many of the folder's
// models.
func keeping(t *testing.T, cfg Config, models uint64) *Manager {
	t.Helper()
	cfg.Dir, cfg.MaxSequences = folder(t), 1
	if cfg.VerifyInterval == 0 {
		cfg.VerifyInterval = -1
	}
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	if models > 0 {
		probe := NewManager(cfg, device, hclog.NewNullLogger())
		inst, _, err := probe.Load(t.Context(), "small", Options{KVTokens: 256}, nil)
		require.NoError(t, err)
		require.NoError(t, probe.Close())
		require.NoError(t, device.Close())
		device, err = sim.Open(sim.Options{Memory: inst.DeviceBytes*models + inst.DeviceBytes/2}, hclog.NewNullLogger())
		require.NoError(t, err)
	}
	m := NewManager(cfg, device, hclog.NewNullLogger())
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		info, err := device.Info()
		require.NoError(t, err)
		require.Zero(t, info.LiveBuffers)
		require.NoError(t, device.Close())
	})
	return m
}

// bring loads a model with the least cache.
func bring(t *testing.T, m *Manager, name string, pin *bool) {
	t.Helper()
	_, _, err := m.Load(t.Context(), name, Options{KVTokens: 256, Pin: pin}, nil)
	require.NoError(t, err)
}

// use is a request of this duration.
func use(t *testing.T, m *Manager, name string, d time.Duration) {
	t.Helper()
	_, release, err := m.Acquire(name)
	require.NoError(t, err)
	time.Sleep(d)
	release()
}

// loaded are the names of the models in service.
func loaded(m *Manager) []string {
	synctest.Wait()
	names := []string{}
	for _, s := range m.Loaded() {
		if s.State == Ready {
			names = append(names, s.Name)
		}
	}
	return names
}

func yes() *bool {
	is := true
	return &is
}

func no() *bool { return new(bool) }

func TestIdleModelsAreUnloaded(t *testing.T) {
	// A model is unloaded when no request has used it for IdleUnload.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Minute}, 0)
		bring(t, m, "small", nil)
		time.Sleep(59 * time.Second)
		require.Equal(t, []string{"small"}, loaded(m), "its load counts as use")
		use(t, m, "small", 5*time.Minute)
		require.Equal(t, []string{"small"}, loaded(m), "a request that is under way is use, however long it takes")
		require.Equal(t, time.Minute, m.Loaded()[0].IdleUnload)
		time.Sleep(time.Minute - time.Millisecond)
		require.Equal(t, []string{"small"}, loaded(m))
		require.Equal(t, time.Minute-time.Millisecond, m.Loaded()[0].IdleAge)
		time.Sleep(2 * time.Millisecond)
		require.Empty(t, m.Loaded())
		_, _, err := m.Acquire("small")
		require.ErrorIs(t, err, ErrNotLoaded)
		bring(t, m, "small", nil)
		use(t, m, "small", time.Second)
	})
}

func TestWithoutATimeNothingIsUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{}, 0)
		bring(t, m, "small", nil)
		time.Sleep(1000 * time.Hour)
		require.Equal(t, []string{"small"}, loaded(m))
		require.Zero(t, m.Loaded()[0].IdleUnload)
	})
}

func TestEachModelHasAnIdleTimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Minute}, 0)
		bring(t, m, "small", nil)
		time.Sleep(30 * time.Second)
		bring(t, m, "family/other", nil)
		time.Sleep(31 * time.Second)
		require.Equal(t, []string{"family/other"}, loaded(m))
		time.Sleep(30 * time.Second)
		require.Empty(t, loaded(m))
	})
}

func TestPinnedModelStaysUntilUnload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Minute}, 0)
		bring(t, m, "small", yes())
		bring(t, m, "family/other", nil)
		bring(t, m, "family/other", yes()) // of one that is loaded
		bring(t, m, "small", nil)          // leaves it as it was
		time.Sleep(time.Hour)
		require.Equal(t, []string{"family/other", "small"}, loaded(m))
		for _, s := range m.Loaded() {
			require.True(t, s.Pinned)
			require.Zero(t, s.IdleUnload)
		}
		bring(t, m, "small", no())
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"family/other"}, loaded(m))
		_, err := m.Unload(t.Context(), "family/other", false)
		require.NoError(t, err)
		bring(t, m, "family/other", nil)
		require.False(t, m.Loaded()[0].Pinned, "what was unloaded is forgotten")
	})
}

func TestReloadInheritsThePin(t *testing.T) {
	// A pinned model that failed is pinned when it is loaded again.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Minute}, 0)
		bring(t, m, "small", yes())
		m.Instances()[0].fail(ErrCorrupt)
		time.Sleep(time.Hour)
		require.Len(t, m.Loaded(), 1, "a failed model is there for an operator to see")
		bring(t, m, "small", nil)
		require.True(t, m.Loaded()[0].Pinned)
	})
}

func TestResidencyChecksAreNoUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Minute, VerifyInterval: time.Second}, 0)
		bring(t, m, "small", nil)
		time.Sleep(time.Minute + time.Millisecond)
		require.Empty(t, loaded(m))
	})
}

func TestRequestRacesAnUnload(t *testing.T) {
	// A request that arrives while its model is unloaded is refused or served.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{IdleUnload: time.Second}, 0)
		for range 50 {
			bring(t, m, "small", nil)
			time.Sleep(time.Second - time.Nanosecond)
			var wait sync.WaitGroup
			for range 4 {
				wait.Go(func() {
					time.Sleep(time.Nanosecond)
					inst, release, err := m.Acquire("small")
					if err != nil {
						require.Condition(t, func() bool { return is(err, ErrNotLoaded, ErrDraining) }, "%v", err)
						return
					}
					defer release()
					time.Sleep(10 * time.Second)
					require.Equal(t, Ready, inst.Status().State, "who holds it keeps it")
				})
			}
			wait.Wait()
			time.Sleep(2 * time.Second)
			require.Empty(t, loaded(m))
		}
	})
}

func TestFitErrorListsIdleModels(t *testing.T) {
	// A load that does not fit names the idle models.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{}, 2)
		bring(t, m, "small", nil)
		time.Sleep(time.Minute)
		bring(t, m, "family/other", yes())
		copyOf(t, m, "small", "third")
		_, _, err := m.Load(t.Context(), "third", Options{KVTokens: 256}, nil)
		var fit *FitError
		require.ErrorAs(t, err, &fit)
		require.Len(t, fit.Idle, 1, "a pinned model is none")
		require.Equal(t, "small", fit.Idle[0].Name)
		require.Equal(t, time.Minute, fit.Idle[0].Age)
		require.Zero(t, fit.RoomIn, "it is not allowed to unload any")
		require.ErrorContains(t, err, `idle and not pinned: "small"`)
		require.Equal(t, []string{"family/other", "small"}, loaded(m))
	})
}

func TestALoadUnloadsTheLongestUnusedModelForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{EvictIdle: 10 * time.Second}, 2)
		bring(t, m, "small", nil)
		bring(t, m, "family/other", nil)
		copyOf(t, m, "small", "third")
		time.Sleep(20 * time.Second)
		use(t, m, "small", time.Second) // now the other is unused for longer
		time.Sleep(10 * time.Second)
		require.True(t, m.Loaded()[0].Reclaimable)
		bring(t, m, "third", nil)
		require.Equal(t, []string{"small", "third"}, loaded(m))
	})
}

func TestMakeRoomSparesModelsInUse(t *testing.T) {
	// Models that are in use, pinned or just used are not unloaded for room.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{EvictIdle: 10 * time.Second}, 1)
		load := func() *FitError {
			_, _, err := m.Load(t.Context(), "family/other", Options{KVTokens: 256}, nil)
			var fit *FitError
			require.ErrorAs(t, err, &fit)
			require.Equal(t, []string{"small"}, loaded(m))
			require.False(t, m.Loaded()[0].Reclaimable)
			return fit
		}
		bring(t, m, "small", nil)
		time.Sleep(4 * time.Second)
		require.Equal(t, 6*time.Second, load().RoomIn, "just loaded")
		_, release, err := m.Acquire("small")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.Zero(t, load().RoomIn, "nobody knows when a request ends")
		release()
		require.Equal(t, 10*time.Second, load().RoomIn.Round(time.Second))
		bring(t, m, "small", yes())
		time.Sleep(time.Hour)
		require.Zero(t, load().RoomIn, "pinned")
	})
}

func TestAModelThatFitsNowhereUnloadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{EvictIdle: time.Second}, 1)
		bring(t, m, "small", nil)
		time.Sleep(time.Hour)
		_, _, err := m.Load(t.Context(), "family/other", Options{KVTokens: 1 << 20}, nil)
		var fit *FitError
		require.ErrorAs(t, err, &fit)
		require.Zero(t, fit.RoomIn, "all the room there is were too little")
		require.Equal(t, []string{"small"}, loaded(m))
	})
}

func TestEvictIdleBoundsReplacement(t *testing.T) {
	// Two models that do not fit together replace each other no more often than EvictIdle allows.
	synctest.Test(t, func(t *testing.T) {
		const stay, hours = 10 * time.Second, 1
		m := keeping(t, Config{EvictIdle: stay}, 1)
		begin, served := time.Now(), map[string]int{}
		for i := 0; time.Since(begin) < hours*time.Hour; i++ {
			name := []string{"small", "family/other"}[i%2]
			for time.Since(begin) < hours*time.Hour { // each request is sent again when it may be
				_, _, err := m.Load(t.Context(), name, Options{KVTokens: 256}, nil)
				var fit *FitError
				if err == nil {
					use(t, m, name, 100*time.Millisecond)
					served[name]++
					break
				}
				require.ErrorAs(t, err, &fit)
				require.Positive(t, fit.RoomIn)
				require.LessOrEqual(t, fit.RoomIn, stay)
				time.Sleep(fit.RoomIn)
			}
		}
		count, _ := m.Loads()
		require.LessOrEqual(t, count, uint64(hours*time.Hour/stay)+1)
		require.Greater(t, served["small"], 100, "and both are served")
		require.InDelta(t, served["small"], served["family/other"], 1)
	})
}

func TestMakeRoomWaitsForAResidencyCheck(t *testing.T) {
	// A load waits for a residency check of the model that it unloads.
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{EvictIdle: time.Second}, 1)
		bring(t, m, "small", nil)
		inst := m.Instances()[0]
		slow := &slowModel{Model: inst.model, entered: make(chan struct{}, 100), proceed: make(chan struct{})}
		inst.model = slow
		go func() { _ = m.Verify(context.Background(), "small") }()
		<-slow.entered
		time.Sleep(2 * time.Second)
		done := make(chan error, 1)
		go func() {
			_, _, err := m.Load(context.Background(), "family/other", Options{KVTokens: 256}, nil)
			done <- err
		}()
		synctest.Wait()
		require.Equal(t, Draining, inst.Status().State)
		close(slow.proceed)
		require.NoError(t, <-done)
		require.Equal(t, 1, slow.digests)
		require.Equal(t, []string{"family/other"}, loaded(m))
	})
}

func TestAPinThatComesAtTheLastMomentKeepsAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := keeping(t, Config{}, 0)
		bring(t, m, "small", yes())
		time.Sleep(time.Hour)
		require.False(t, m.Instances()[0].retire(time.Minute), "who looked before the pin must not decide after it")
		bring(t, m, "small", no())
		require.False(t, m.Instances()[0].retire(time.Minute), "letting it go counts as use")
		time.Sleep(time.Minute)
		require.True(t, m.Instances()[0].retire(time.Minute))
	})
}
