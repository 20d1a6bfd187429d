package model

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// What a refuser may be asked to keep.
const (
	theWeights = "weights"
	theCache   = "cache"
	aBuffer    = "buffer"
	hostMemory = "host memory"
)

// refuser is a device that refuses to take some things back, and then changes nothing, as the
// contract has it.
type refuser struct {
	engine.Device
	mu   sync.Mutex
	kept map[string]bool // guarded by mu
}

func (r *refuser) keep(what ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = map[string]bool{}
	for _, w := range what {
		r.kept[w] = true
	}
}

func (r *refuser) refuse(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[what] {
		return fmt.Errorf("the driver keeps the %s: %w", what, engine.ErrDevice)
	}
	return nil
}

func (r *refuser) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	b, err := r.Device.Alloc(size, purpose)
	return &refusedBuffer{b, r}, err
}

func (r *refuser) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	m, err := r.Device.NewModel(desc)
	return &refusedModel{m, r}, err
}

func (r *refuser) Stage(size int) (engine.Staged, error) {
	return &refusedMemory{by: r, memory: make([]byte, size)}, nil
}

type refusedMemory struct {
	by     *refuser
	memory []byte
	freed  atomic.Bool
}

func (m *refusedMemory) Bytes() []byte { return m.memory }

func (m *refusedMemory) Free() error {
	if err := m.by.refuse(hostMemory); err != nil {
		return err
	}
	if m.freed.Swap(true) {
		return errors.New("freed twice")
	}
	return nil
}

type refusedBuffer struct {
	engine.Buffer
	by *refuser
}

func (b *refusedBuffer) Free() error {
	if err := b.by.refuse(aBuffer); err != nil {
		return err
	}
	return b.Buffer.Free()
}

type refusedModel struct {
	engine.Model
	by *refuser
}

func (m *refusedModel) Bind(desc engine.TensorDesc, b engine.Buffer) error {
	return m.Model.Bind(desc, b.(*refusedBuffer).Buffer)
}

func (m *refusedModel) NewRunner(cfg engine.RunnerConfig) (engine.Runner, error) {
	r, err := m.Model.NewRunner(cfg)
	return &refusedRunner{r, m.by}, err
}

func (m *refusedModel) Close() error {
	if err := m.by.refuse(theWeights); err != nil {
		return err
	}
	return m.Model.Close()
}

type refusedRunner struct {
	engine.Runner
	by *refuser
}

func (r *refusedRunner) Close() error {
	if err := r.by.refuse(theCache); err != nil {
		return err
	}
	return r.Runner.Close()
}

// refusing is a manager whose device can refuse; hooks stand between the two.
func refusing(t *testing.T, hooks enginetest.Hooks) (*Manager, *refuser) {
	t.Helper()
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	r := &refuser{Device: device}
	return managerOf(t, enginetest.Intercept(r, hooks)), r
}

// agrees checks that the device counts as much of each model's memory as the manager does.
func agrees(t *testing.T, m *Manager) {
	t.Helper()
	info, err := m.device.Info()
	require.NoError(t, err)
	listed := uint64(0)
	for _, s := range m.Loaded() {
		listed += s.DeviceBytes
	}
	require.Equal(t, info.BytesUsed[engine.Weights]+info.BytesUsed[engine.KV]+info.BytesUsed[engine.Workspace], listed)
}

func TestRefusedFreeKeepsTheModel(t *testing.T) {
	// A model whose memory the device refuses to free stays until it is free.
	for name, tc := range map[string]struct {
		kept    []string
		refusal int
	}{
		"its weights":           {[]string{theWeights}, 1},
		"its cache":             {[]string{theCache}, 2}, // and the weights after it
		"its weights and cache": {[]string{theWeights, theCache}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m, device := refusing(t, enginetest.Hooks{})
			inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
			agrees(t, m)
			device.keep(tc.kept...)
			for attempt := range 3 {
				_, err = m.Unload(t.Context(), "small", true)
				require.ErrorContains(t, err, "the driver keeps the "+tc.kept[len(tc.kept)-1])
				require.ErrorContains(t, err, "unload it to try again")
				require.Len(t, m.Loaded(), 1)
				require.Equal(t, Failed, m.Loaded()[0].State)
				require.ErrorContains(t, m.Loaded()[0].Problem, "the driver keeps")
				require.ErrorIs(t, m.Loaded()[0].Problem, ErrHeld)
				require.Positive(t, m.Loaded()[0].DeviceBytes)
				require.EqualValues(t, tc.refusal*(attempt+1), m.RefusedFrees())
				agrees(t, m)
			}
			_, _, err = m.Acquire("small")
			require.ErrorIs(t, err, ErrFailed)
			_, _, err = m.Load(t.Context(), "small", Options{}, nil)
			require.ErrorContains(t, err, "the driver keeps", "there is no second one beside it")
			_, _, err = m.Load(t.Context(), "family/other", Options{}, nil)
			require.NoError(t, err, "others are served")
			agrees(t, m)

			device.keep()
			left := m.Loaded()[1].DeviceBytes
			freed, err := m.Unload(t.Context(), "small", true)
			require.NoError(t, err)
			require.Equal(t, UnloadResult{Freed: left}, freed)
			require.Len(t, m.Loaded(), 1)
			agrees(t, m)
			fresh, _, err := m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
			require.NotSame(t, inst, fresh)
		})
	}
}

func TestFailedLoadOwnsRefusedMemory(t *testing.T) {
	// A failed load accounts for the memory that the device refuses to free.
	for name, tc := range map[string]struct {
		kept  []string
		hooks func(broken *atomic.Bool) enginetest.Hooks
	}{
		"the weights bound so far": {[]string{theWeights}, func(broken *atomic.Bool) enginetest.Hooks {
			binds := 0
			return enginetest.Hooks{Bind: func(engine.TensorDesc) error {
				if binds++; broken.Load() && binds > 10 {
					return errBroken
				}
				return nil
			}}
		}},
		"all weights, for want of a cache": {[]string{theWeights}, func(broken *atomic.Bool) enginetest.Hooks {
			return enginetest.Hooks{NewRunner: func(engine.RunnerConfig) error { return when(broken) }}
		}},
		"the cache, after its first step": {[]string{theCache}, func(broken *atomic.Bool) enginetest.Hooks {
			return enginetest.Hooks{Wait: func() error { return when(broken) }}
		}},
		"host memory": {[]string{hostMemory}, func(broken *atomic.Bool) enginetest.Hooks {
			return enginetest.Hooks{Digest: func(int) error { return when(broken) }}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			m, device := refusing(t, tc.hooks(&broken))
			broken.Store(true)
			device.keep(tc.kept...)
			for range 2 {
				_, _, err := m.Load(t.Context(), "small", Options{}, nil)
				require.ErrorContains(t, err, "the driver keeps the "+tc.kept[0])
				require.Equal(t, Failed, m.Loaded()[0].State)
				require.Positive(t, m.RefusedFrees())
				agrees(t, m)
			}
			broken.Store(false)
			device.keep()
			_, _, err := m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err, "what is left of the last one is freed first")
			require.Equal(t, Ready, m.Loaded()[0].State)
			agrees(t, m)
		})
	}
}

func TestRefusedStagingBuffersAreFreedLater(t *testing.T) {
	var allocs, binds atomic.Int64
	var broken chan struct{}
	m, device := refusing(t, enginetest.Hooks{
		Alloc: func(uint64, engine.Purpose) error {
			if allocs.Add(1) == 7 {
				close(broken)
				return errBroken
			}
			return nil
		},
		Bind: func(engine.TensorDesc) error {
			if binds.Add(1) == 3 {
				<-broken                          // some buffers are not bound then
				time.Sleep(20 * time.Millisecond) // while the load hears of it
			}
			return nil
		},
	})
	device.keep(aBuffer)
	var err error
	for attempt := 0; len(m.Loaded()) == 0; attempt++ { // until the load heard of it before it had bound all of them
		require.Less(t, attempt, 100)
		broken = make(chan struct{})
		allocs.Store(0)
		binds.Store(0)
		_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	}
	require.ErrorIs(t, err, errBroken)
	require.ErrorContains(t, err, "the driver keeps the buffer")
	require.Equal(t, Failed, m.Loaded()[0].State)
	require.Zero(t, m.Loaded()[0].DeviceBytes, "they are no part of the model")
	info, err := m.device.Info()
	require.NoError(t, err)
	require.Positive(t, info.BytesUsed[engine.Staging])
	device.keep()
	allocs.Store(100)
	binds.Store(100)
	_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	info, err = m.device.Info()
	require.NoError(t, err)
	require.Zero(t, info.BytesUsed[engine.Staging])
}

func when(broken *atomic.Bool) error {
	if broken.Load() {
		return errBroken
	}
	return nil
}

func TestCloseMayBeCalledAgain(t *testing.T) {
	// A manager that could not free everything may be closed again.
	m, device := refusing(t, enginetest.Hooks{})
	_, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	device.keep(theWeights)
	require.ErrorContains(t, m.Close(), "the driver keeps the weights")
	agrees(t, m)
	device.keep()
	require.NoError(t, m.Close())
	require.Empty(t, m.Loaded())
}

func TestARefusedStepLeavesItsModelInService(t *testing.T) {
	const poison = 7
	m, _ := refusing(t, enginetest.Hooks{Submit: func(s *engine.Step) error {
		for _, seg := range s.Segments {
			for _, id := range seg.Tokens {
				if id == poison {
					return fmt.Errorf("token %d: %w", id, engine.ErrInvalid)
				}
			}
		}
		return nil
	}})
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	s, err := submit(inst.Loop, batch.Request{Prompt: []int32{1, poison}, MaxTokens: 5, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
	require.NoError(t, err)
	_, err = s.Recv(t.Context(), nil)
	require.ErrorIs(t, err, engine.ErrInvalid)
	require.ErrorContains(t, err, "token 7")
	require.Eventually(t, inst.Loop.Idle, time.Minute, time.Millisecond)
	require.Equal(t, Ready, m.Loaded()[0].State)
	require.Positive(t, m.Loaded()[0].Steps.RefusedSteps)
}
