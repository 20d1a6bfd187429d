package model

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/gpuworker/template"
)

func TestMain(m *testing.M) {
	template.MaybeChild()
	os.Exit(m.Run())
}

// small is a model of a few thousand weights without a tokenizer.
var small = synth.Shape{Name: "small", Architecture: "llama", Desc: engine.Uniform{
	Layers: 2, Hidden: 64, Heads: 4, KVHeads: 2, FFN: 96, Vocab: 300, Context: 256,
}}

// folder makes a models folder: "small" and "other" are good, the rest is bad in the way its name
// says.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, data []byte) {
		path := filepath.Join(dir, name+extension)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	model := func(s synth.Shape, seed uint64) []byte {
		var out bytes.Buffer
		require.NoError(t, synth.Write(&out, s, synth.Only(gguf.Q8_0), seed))
		return out.Bytes()
	}
	good := model(small, 1)
	write("small", good)
	write("family/other", model(small, 2))
	write("truncated", good[:len(good)-100])
	write("random", bytes.Repeat([]byte("not a model. "), 99))
	mamba := bytes.Replace(good, []byte("\x05\x00\x00\x00\x00\x00\x00\x00llama"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00mamba"), 1)
	write("mamba", mamba)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory"+extension), 0o755))
	outside := filepath.Join(t.TempDir(), "outside"+extension)
	require.NoError(t, os.WriteFile(outside, good, 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link"+extension)))
	return dir
}

// simulated is a simulated device, which computes every model.
func simulated(t *testing.T) engine.Device {
	t.Helper()
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	return device
}

// manager owns a sim device of this size. Memory that it leaves allocated fails the test.
func manager(t *testing.T, memory uint64) (*Manager, engine.Device) {
	t.Helper()
	device, err := sim.Open(sim.Options{Memory: memory}, hclog.NewNullLogger())
	require.NoError(t, err)
	return managerOf(t, device), device
}

// managerOf closes the device in the end; what the manager leaves allocated fails the test.
func managerOf(t *testing.T, device engine.Device) *Manager {
	t.Helper()
	m := NewManager(Config{Dir: folder(t), VerifyInterval: -1}, device, hclog.NewNullLogger())
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		info, err := device.Info()
		require.NoError(t, err)
		require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed, "the ledger is back to zero")
		require.Zero(t, info.LiveBuffers)
		require.NoError(t, device.Close())
	})
	return m
}

func TestLoadServeUnload(t *testing.T) {
	m, device := manager(t, 1<<30)
	var stages []Stage
	inst, already, err := m.Load(t.Context(), "small", Options{}, func(p Progress) { stages = append(stages, p.Stage) })
	require.NoError(t, err)
	require.False(t, already)
	require.IsNonDecreasing(t, stages)
	require.Equal(t, Loaded, stages[len(stages)-1])
	require.Equal(t, 256, inst.Context)

	again, already, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	require.True(t, already)
	require.Same(t, inst, again)

	info, err := device.Info()
	require.NoError(t, err)
	require.Equal(t, inst.DeviceBytes, info.BytesUsed[engine.Weights]+info.BytesUsed[engine.KV]+info.BytesUsed[engine.Workspace])
	require.Zero(t, info.BytesUsed[engine.Staging])

	got, release, err := m.Acquire("small")
	require.NoError(t, err)
	s, err := submit(got.Loop, batch.Request{Prompt: []int32{1, 2, 3}, MaxTokens: 5, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
	require.NoError(t, err)
	var tokens int
	for {
		events, err := s.Recv(t.Context(), nil)
		require.NoError(t, err)
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if e.Token != nil {
				tokens++
			}
		}
	}
	require.Equal(t, 5, tokens)
	release()
	release()
	freed, err := m.Unload(t.Context(), "small", false)
	require.NoError(t, err)
	require.Equal(t, UnloadResult{Freed: inst.DeviceBytes}, freed)
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, ErrNotLoaded)
}

func TestSlowFirstStepIsNotAHang(t *testing.T) {
	// A model whose first step is slow does not count as hung at its first request.
	device, err := sim.Open(sim.Options{StepTime: 700 * time.Millisecond}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := NewManager(Config{Dir: folder(t), VerifyInterval: -1}, device, hclog.NewNullLogger())
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, inst.Loop.Stats().StepBound, 4*700*time.Millisecond)
	require.NoError(t, m.Close())
	require.NoError(t, device.Close())
}

func TestLoadRefusals(t *testing.T) {
	m, _ := manager(t, 1<<30)
	wrong := engine.Digest{1}
	for name, tc := range map[string]struct {
		model   string
		options Options
		want    error
	}{
		"a name that climbs out":         {"../../etc/passwd", Options{}, ErrName},
		"a name with a hidden step":      {"family/.other", Options{}, ErrName},
		"an absolute name":               {"/etc/passwd", Options{}, ErrName},
		"an empty name":                  {"", Options{}, ErrName},
		"a name with a zero byte":        {"small\x00", Options{}, ErrName},
		"a link that leads out":          {"link", Options{}, ErrNotFound},
		"a file that is not there":       {"nobody", Options{}, ErrNotFound},
		"a truncated file":               {"truncated", Options{}, gguf.ErrFormat},
		"a file that is no model":        {"random", Options{}, gguf.ErrFormat},
		"a directory":                    {"directory", Options{}, gguf.ErrFormat},
		"an architecture not built":      {"mamba", Options{}, arch.ErrUnsupportedArch},
		"another digest":                 {"small", Options{ExpectDigest: &wrong}, ErrDigest},
		"a context beyond the model's":   {"small", Options{Context: 257}, ErrOption},
		"a cache smaller than a context": {"small", Options{Context: 200, KVTokens: 100}, ErrOption},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := m.Load(t.Context(), tc.model, tc.options, nil)
			require.ErrorIs(t, err, tc.want)
		})
	}
	_, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err, "the manager serves on")
}

func TestFitErrorComesBeforeTheUpload(t *testing.T) {
	// A model that does not fit is refused with numbers before its tensors are read.
	m, _ := manager(t, 100_000)
	var stages []Stage
	_, _, err := m.Load(t.Context(), "small", Options{}, func(p Progress) { stages = append(stages, p.Stage) })
	var fit *FitError
	require.ErrorAs(t, err, &fit)
	require.ErrorIs(t, err, ErrNoFit)
	require.Greater(t, fit.Needed, fit.Free)
	require.NotContains(t, stages, Uploading)
}

func TestLoadIsASingleFlight(t *testing.T) {
	// Many callers share one load, and one that leaves does not end it.
	m, _ := manager(t, 1<<30)
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1)) // the load waits here until every caller has joined
	var wg sync.WaitGroup
	instances := make([]*Instance, 20)
	for i := range instances {
		wg.Go(func() {
			var err error
			instances[i], _, err = m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
		})
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _, err := m.Load(gone, "small", Options{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	m.loadSlot.Release(1)
	wg.Wait()
	for _, i := range instances {
		require.Same(t, instances[0], i)
	}
}

func TestUnloadWaitsForRequestsOrCancelsThem(t *testing.T) {
	m, _ := manager(t, 1<<30)
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	_, release, err := m.Acquire("small")
	require.NoError(t, err)
	s, err := submit(inst.Loop, batch.Request{Prompt: []int32{1}, MaxTokens: 200, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = m.Unload(ctx, "small", false)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, ErrDraining)

	go func() {
		defer release()
		<-inst.ended // else the request might have its last token, and the model be gone, before it is cancelled
		for {
			if events, err := s.Recv(context.Background(), nil); err != nil || len(events) == 0 {
				return
			}
		}
	}()
	_, err = m.Unload(t.Context(), "small", true)
	require.NoError(t, err)
	require.Empty(t, m.Loaded())
}

func TestManagerUnloadsWithoutItsCaller(t *testing.T) {
	m, _ := manager(t, 1<<30)
	_, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	_, release, err := m.Acquire("small")
	require.NoError(t, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = m.Unload(gone, "small", false)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, m.Loaded(), 1, "a request still runs")
	release()
	require.Eventually(t, func() bool { return len(m.Loaded()) == 0 }, time.Minute, time.Millisecond)
}

func TestReloadDoesNotBlockOtherLoads(t *testing.T) {
	// A load of a draining model does not delay other loads.
	m, _ := manager(t, 1<<30)
	old, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	_, release, err := m.Acquire("small")
	require.NoError(t, err)
	old.drain()
	queued := make(chan Stage, 1000)
	again := make(chan *Instance)
	go func() {
		inst, _, err := m.Load(context.Background(), "small", Options{}, func(p Progress) { queued <- p.Stage })
		if err != nil {
			inst = nil
		}
		again <- inst
	}()
	require.Equal(t, Queued, <-queued)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err = m.Load(ctx, "family/other", Options{}, nil)
	require.NoError(t, err)
	release()
	fresh := <-again
	require.NotNil(t, fresh)
	require.NotSame(t, old, fresh)
}

func TestExpectationFailsItsOwnCallerOnly(t *testing.T) {
	// One caller's expected digest does not fail another caller's load.
	m, _ := manager(t, 1<<30)
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1)) // the load waits here until the second caller has joined
	wrong, picky := engine.Digest{1}, make(chan error)
	go func() {
		_, _, err := m.Load(context.Background(), "small", Options{ExpectDigest: &wrong}, nil)
		picky <- err
	}()
	require.Eventually(t, func() bool { return len(m.Loaded()) == 1 }, time.Minute, time.Millisecond)
	joined, easy := make(chan Stage, 1000), make(chan error)
	go func() {
		_, _, err := m.Load(context.Background(), "small", Options{}, func(p Progress) { joined <- p.Stage })
		easy <- err
	}()
	require.Equal(t, Queued, <-joined)
	m.loadSlot.Release(1)
	require.ErrorIs(t, <-picky, ErrDigest)
	require.NoError(t, <-easy)
}

// slowRunner closes slowly.
type slowRunner struct {
	engine.Runner
	closing, proceed chan struct{}
}

func (r *slowRunner) Close() error {
	close(r.closing)
	<-r.proceed
	return r.Runner.Close()
}

func TestAModelIsThereUntilItsMemoryIsFree(t *testing.T) {
	m, device := manager(t, 1<<30)
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	slow := &slowRunner{inst.runner, make(chan struct{}), make(chan struct{})}
	inst.runner = slow
	ended := make(chan error, 2)
	unload := func() {
		_, err := m.Unload(context.Background(), "small", false)
		info, _ := device.Info()
		if err == nil && info.BytesUsed[engine.KV] > 0 {
			err = errors.New("unloaded before its memory was free")
		}
		ended <- err
	}
	go unload()
	<-slow.closing
	require.Equal(t, Draining, m.Loaded()[0].State)
	go unload()
	select {
	case err := <-ended:
		require.FailNow(t, "an unload ended", "%v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(slow.proceed)
	require.NoError(t, <-ended)
	if err := <-ended; err != nil {
		require.ErrorIs(t, err, ErrNotLoaded, "the second may find nothing left")
	}
	require.Empty(t, m.Loaded())
}

// slowModel computes one digest when its gate opens.
type slowModel struct {
	engine.Model
	entered, proceed chan struct{}
	digests          int
}

func (s *slowModel) Digest(tensor int) (engine.Digest, error) {
	s.digests++
	s.entered <- struct{}{}
	<-s.proceed
	return s.Model.Digest(tensor)
}

func TestAResidencyPassEndsWhenItsModelIsUnloaded(t *testing.T) {
	m, _ := manager(t, 1<<30)
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	slow := &slowModel{Model: inst.model, entered: make(chan struct{}, 100), proceed: make(chan struct{})}
	inst.model = slow
	verified, unloaded := make(chan error), make(chan error)
	go func() { verified <- m.Verify(context.Background(), "small") }()
	<-slow.entered
	go func() {
		_, err := m.Unload(context.Background(), "small", false)
		unloaded <- err
	}()
	require.Eventually(t, func() bool { return m.Loaded()[0].State == Draining }, time.Minute, time.Millisecond)
	close(slow.proceed)
	require.ErrorIs(t, <-verified, context.Canceled)
	require.NoError(t, <-unloaded)
	require.Equal(t, 1, slow.digests)
}

func TestFlippedBitTakesTheModelOut(t *testing.T) {
	// A flipped bit is found and takes the model out of service.
	m, _ := manager(t, 1<<30)
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	require.NoError(t, m.Verify(t.Context(), "small"))
	flipper, ok := inst.model.(engine.BitFlipper)
	require.True(t, ok)
	require.NoError(t, flipper.FlipBit(3, 77))
	err = m.Verify(t.Context(), "small")
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, inst.tensors[3].name)
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, ErrFailed)
	status := m.Loaded()[0]
	require.Equal(t, Failed, status.State)
	require.ErrorIs(t, status.Problem, ErrCorrupt)

	fresh, already, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err, "a failed model can be loaded again")
	require.False(t, already)
	require.NotSame(t, inst, fresh)
	require.NoError(t, m.Verify(t.Context(), "small"))
}

func TestFilesAreListedWithWhatIsWrongWithThem(t *testing.T) {
	m, _ := manager(t, 1<<30)
	got := map[string]bool{}
	for _, e := range m.Files() {
		got[e.Name] = e.Problem == nil
	}
	require.Equal(t, map[string]bool{"small": true, "family/other": true, "truncated": false, "random": false, "mamba": false, "link": false}, got)
	require.NoError(t, os.Remove(filepath.Join(m.cfg.Dir, "random"+extension)))
	require.Len(t, m.Files(), 5)
}

func TestCloseEndsRunningRequests(t *testing.T) {
	m, _ := manager(t, 1<<30)
	inst, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
	s, err := submit(inst.Loop, batch.Request{Prompt: []int32{1}, MaxTokens: 250, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
	require.NoError(t, err)
	require.NoError(t, m.Close())
	for {
		if _, err = s.Recv(t.Context(), nil); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, ErrStopped)
	_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	require.ErrorIs(t, err, ErrStopped)
	require.NotErrorIs(t, err, ErrNotFound)
}

func TestClassesDifferByWhatDecidesBitsOnly(t *testing.T) {
	base := engine.DeviceInfo{Kind: "cpu", Numerics: "1", Build: "b", Path: "avx2", SMCount: 2}
	id := ClassID(base, engine.F32)
	more := base
	more.SMCount, more.Name, more.BytesTotal = 64, "another", 1
	require.Equal(t, id, ClassID(more, engine.F32), "threads, names and sizes of a CPU decide nothing")
	seen := map[string]bool{id: true}
	for _, change := range []func(*engine.DeviceInfo){
		func(i *engine.DeviceInfo) { i.Numerics = "2" }, func(i *engine.DeviceInfo) { i.Build = "c" },
		func(i *engine.DeviceInfo) { i.Path = "portable" }, func(i *engine.DeviceInfo) { i.Kind = "cuda" },
	} {
		other := base
		change(&other)
		require.False(t, seen[ClassID(other, engine.F32)])
		seen[ClassID(other, engine.F32)] = true
	}
	for _, kv := range []engine.Type{engine.BF16, engine.F8} {
		for _, act := range []engine.Type{0, engine.F16, engine.BF16} {
			for _, choices := range [][]string{nil, {fileSampling}, {shortFactors}, {fileSampling, shortFactors}} {
				id := classID(base, kv, act, choices...)
				require.False(t, seen[id], "cache %d, activations %d, choices %v", kv, act, choices)
				seen[id] = true
			}
		}
		require.Equal(t, ClassID(base, kv), classID(base, kv, 0))
	}
}

// submit gives a loop a request of one continuation.
func submit(l *batch.Loop, r batch.Request) (*batch.Stream, error) {
	r.Continuations = make([]batch.Continuation, 1)
	streams, err := l.Submit(r)
	if err != nil {
		return nil, err
	}
	return streams[0], nil
}
