package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/gpuworker/vram"
)

// stagingBuffers is how many buffers a load by four goroutines asks for.
const stagingBuffers = 6

// stager is a manager whose device stages memory and counts allocations and frees.
type stager struct {
	*Manager
	device        engine.Device
	stages, frees atomic.Int64
}

// staging adds the counts to the hooks of tests; the Stage of a test is asked with the number of
// the piece, from 1 on.
func staging(t *testing.T, hooks enginetest.Hooks, stage func(k int) error) *stager {
	t.Helper()
	s := &stager{}
	hooks.Stage = func(int) error {
		if stage != nil {
			if err := stage(int(s.stages.Load()) + 1); err != nil {
				return err
			}
		}
		s.stages.Add(1)
		return nil
	}
	unstage := hooks.Unstage
	hooks.Unstage = func() error {
		s.frees.Add(1)
		if unstage != nil {
			return unstage()
		}
		return nil
	}
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	s.device = enginetest.Intercept(device, hooks)
	s.Manager = managerOf(t, s.device)
	s.cfg.UploadWorkers = 4
	return s
}

// failed loads a model, which must fail, and checks that this many pieces were staged, that all are
// freed, and that the device holds nothing.
func (s *stager) failed(t *testing.T, want error, stages int) {
	t.Helper()
	_, _, err := s.Load(t.Context(), "small", Options{}, nil)
	require.ErrorIs(t, err, want)
	require.NotErrorIs(t, err, vram.ErrLeak)
	require.EqualValues(t, stages, s.stages.Load())
	require.EqualValues(t, stages, s.frees.Load())
	info, err := s.device.Info()
	require.NoError(t, err)
	require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed)
	require.Zero(t, info.LiveBuffers)
}

var errBroken = errors.New("broken")

func TestALoadFreesTheMemoryThatItStaged(t *testing.T) {
	s := staging(t, enginetest.Hooks{}, nil)
	wide := synth.Shape{Name: "wide", Architecture: "llama", Desc: engine.Uniform{
		Layers: 1, Hidden: 512, Heads: 4, KVHeads: 2, FFN: 64, Vocab: 2*stagedPiece/512 + 1, Context: 256,
	}}
	out, err := os.Create(filepath.Join(s.cfg.Dir, "wide"+extension))
	require.NoError(t, err)
	require.NoError(t, synth.Write(out, wide, synth.Only(gguf.Q8_0), 3), "tensors of several pieces")
	require.NoError(t, out.Close())
	for i, name := range []string{"small", "wide"} {
		_, _, err := s.Load(t.Context(), name, Options{}, nil)
		require.NoError(t, err)
		require.EqualValues(t, (i+1)*stagingBuffers, s.stages.Load())
		require.EqualValues(t, (i+1)*stagingBuffers, s.frees.Load())
		require.NoError(t, s.Verify(t.Context(), name))
	}
}

func TestALoadMakesDoWithTheMemoryThatItCanStage(t *testing.T) {
	for given := range stagingBuffers {
		t.Run(fmt.Sprintf("%d buffers", given), func(t *testing.T) {
			stage := func(k int) error {
				if k > given {
					return fmt.Errorf("no more: %w", engine.ErrOutOfMemory)
				}
				return nil
			}
			s := staging(t, enginetest.Hooks{}, stage)
			_, _, err := s.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
			require.EqualValues(t, given, s.stages.Load())
			require.EqualValues(t, given, s.frees.Load())

			u := &uploads{}
			buffers, err := u.buffers(staging(t, enginetest.Hooks{}, stage).device, 4, hclog.NewNullLogger())
			require.NoError(t, err)
			want, size := given, stagedPiece
			if given < 4 {
				want, size = 4, uploadPiece
			}
			var sizes []int
			for _, b := range buffers {
				sizes = append(sizes, len(b))
			}
			require.Equal(t, slices.Repeat([]int{size}, want), sizes)
			require.EqualValues(t, size, u.piece)
			require.NoError(t, u.free())
		})
	}
}

func TestALoadThatCannotStageFailsAndLeavesNothing(t *testing.T) {
	for given := range stagingBuffers {
		t.Run(fmt.Sprintf("after %d buffers", given), func(t *testing.T) {
			s := staging(t, enginetest.Hooks{}, func(k int) error {
				if k > given {
					return errBroken
				}
				return nil
			})
			s.failed(t, errBroken, given)
		})
	}
}

func TestALoadThatCannotBindFailsAndLeavesNothing(t *testing.T) {
	for _, bound := range []int64{0, 1, 10, 20} {
		t.Run(fmt.Sprintf("after %d tensors", bound), func(t *testing.T) {
			var binds atomic.Int64
			s := staging(t, enginetest.Hooks{Bind: func(engine.TensorDesc) error {
				if binds.Add(1) > bound {
					return errBroken
				}
				return nil
			}}, nil)
			s.failed(t, errBroken, stagingBuffers)
			require.Equal(t, bound+1, binds.Load())
		})
	}
}

func TestCancelledLoadLeavesNothing(t *testing.T) {
	// A cancelled load returns the cause and leaves nothing allocated.
	for _, bound := range []int64{0, 1, 10, 20} {
		t.Run(fmt.Sprintf("after %d tensors", bound), func(t *testing.T) {
			var s *stager
			var binds atomic.Int64
			closed := make(chan error, 1)
			s = staging(t, enginetest.Hooks{Bind: func(engine.TensorDesc) error {
				if binds.Add(1) > bound {
					go func() { closed <- s.Close() }()
					<-s.ctx.Done()
					_ = context.Cause(s.ctx) // acquired only after everything else has ended
				}
				return nil
			}}, nil)
			s.failed(t, ErrStopped, stagingBuffers)
			require.NoError(t, <-closed)
			require.Equal(t, bound+1, binds.Load(), "it ends at once")
		})
	}
}

func TestALoadThatFailsSaysTheFirstThatWentWrong(t *testing.T) {
	for attempt := 0; !saysTheFirst(t); attempt++ { // until the load heard of the first before there was a second
		require.Less(t, attempt, 100)
	}
}

// saysTheFirst makes a load fail twice, by its binding and then by a consequence, and reports whether
// the load returned the first error. A load returns one only.
func saysTheFirst(t *testing.T) bool {
	t.Helper()
	entered, broken, digested := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, slow sync.Once
	var binds atomic.Int64
	s := staging(t, enginetest.Hooks{
		Bind: func(engine.TensorDesc) error {
			if binds.Add(1) < 10 {
				return nil
			}
			<-entered
			close(broken)
			return errBroken
		},
		Digest: func(int) error {
			first.Do(func() {
				close(entered)
				<-broken
				time.Sleep(20 * time.Millisecond) // while the load hears of it
			})
			defer close(digested) // a second one panics
			return engine.ErrDevice
		},
		Unstage: func() error {
			<-digested
			slow.Do(func() { time.Sleep(20 * time.Millisecond) })
			return nil
		},
	}, nil)
	_, _, err := s.Load(t.Context(), "small", Options{}, nil)
	if errors.Is(err, engine.ErrDevice) {
		require.NotErrorIs(t, err, errBroken)
		return false
	}
	require.ErrorIs(t, err, errBroken)
	return true
}

// brokenModel can compute no digest.
type brokenModel struct{ engine.Model }

func (brokenModel) Digest(int) (engine.Digest, error) { return engine.Digest{}, errBroken }

func TestNothingIsVerifiedForALoadThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrStopped)
	inst := &Instance{model: brokenModel{}}
	bound := make(chan tensorDigest, 1)
	bound <- tensorDigest{}
	for range 50 { // select chooses at random
		_, err := inst.verifyBound(ctx, bound, nil)
		require.ErrorIs(t, err, ErrStopped)
	}
	_, err := inst.verifyBound(t.Context(), bound, nil)
	require.ErrorIs(t, err, errBroken)

	ctx, cancel = context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() {
		_, err := inst.verifyBound(ctx, bound, nil)
		ended <- err
	}()
	cancel(ErrStopped)
	require.ErrorIs(t, <-ended, ErrStopped)
}
