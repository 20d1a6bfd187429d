package batch

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestLoopKeepsTwoStepsInFlight(t *testing.T) {
	// A step is submitted before the result of the one before it is read.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{}, func(f *fakeRunner) { f.gate = make(chan struct{}) })
		r := Request{Prompt: prompt(20, 1), MaxTokens: 30, PromptTopN: -1}
		s, err := submit(l, r)
		require.NoError(t, err)
		synctest.Wait()
		steps, tokens := f.computed()
		require.Equal(t, 2, steps, "nobody has read a result yet")
		require.Equal(t, 21, tokens, "the second step computes the first one's sample")
		close(f.gate)
		got, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(r), got)
		require.Equal(t, 2, f.deepest)
		require.Equal(t, 29, f.previous, "every generated token that was computed was still in flight then")
		_, tokens = f.computed()
		require.Equal(t, 20+29, tokens, "nothing is planned beyond the last token")
	})
}

func TestLateStopCostsOneRow(t *testing.T) {
	// A stop token that is found late costs one row, whose result is dropped.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{}, func(f *fakeRunner) { f.gate = make(chan struct{}, 100) })
		r := Request{Prompt: prompt(5, 2), MaxTokens: 30, PromptTopN: -1}
		all := want(r)
		r.StopIDs = []int32{all[3]}
		s, err := submit(l, r)
		require.NoError(t, err)
		for range 4 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		require.False(t, l.Idle(), "its last step is in flight")
		require.Less(t, l.Stats().FreeBlocks, 64, "and the device still writes to its blocks")
		f.gate <- struct{}{}
		got, _, done, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, all[:4], got)
		require.Equal(t, Stop, done.Reason)
		synctest.Wait()
		require.True(t, l.Idle())
		require.Equal(t, 64, l.Stats().FreeBlocks)
		_, tokens := f.computed()
		require.Equal(t, 5+4, tokens, "one row more than the answer needs")
		require.EqualValues(t, 4, l.Stats().GeneratedTokens)
	})
}

func TestCancelKeepsBlocksUntilStepsEnd(t *testing.T) {
	// A cancelled sequence holds its blocks only for the steps in flight.
	synctest.Test(t, func(t *testing.T) {
		told := &recorder{}
		l, f := start(t, Config{Observer: told}, func(f *fakeRunner) { f.gate = make(chan struct{}, 100) })
		s, err := submit(l, Request{Prompt: prompt(40, 1), MaxTokens: 400, PromptTopN: -1})
		require.NoError(t, err)
		f.gate <- struct{}{}
		synctest.Wait() // the second and third step are in flight
		before, _ := f.computed()
		s.Cancel()
		synctest.Wait()
		require.Less(t, l.Stats().FreeBlocks, 64)
		f.gate <- struct{}{}
		f.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, 64, l.Stats().FreeBlocks)
		after, _ := f.computed()
		require.Equal(t, before, after)
		require.Zero(t, l.Stats().StepsAfterCancel)
		require.Equal(t, []int{2}, told.freed, "steps until its blocks were free")
	})
}

func TestCancelAfterTheEndIsNotCounted(t *testing.T) {
	// A sequence that is cancelled after its end does not count as cancelled.
	synctest.Test(t, func(t *testing.T) {
		told := &recorder{}
		l, f := start(t, Config{Observer: told}, func(f *fakeRunner) { f.gate = make(chan struct{}, 100) })
		r := Request{Prompt: prompt(5, 2), MaxTokens: 30, PromptTopN: -1}
		r.StopIDs = want(r)[3:4]
		s, err := submit(l, r)
		require.NoError(t, err)
		for range 4 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		s.Cancel() // as every reader does that leaves, while the sequence's last step is in flight
		f.gate <- struct{}{}
		synctest.Wait()
		require.True(t, l.Idle())
		require.Equal(t, 64, l.Stats().FreeBlocks)
		require.Empty(t, told.freed)
		require.Zero(t, l.Stats().Cancelled)
	})
}

func TestStatsShowAHangInTheSecondStep(t *testing.T) {
	// A step that hangs after another one shows in the statistics.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{}, func(f *fakeRunner) { f.gate = make(chan struct{}, 9) })
		time.Sleep(time.Hour)
		s, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 9, PromptTopN: -1})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, time.Second, l.Stats().RunningStepAge)
		f.gate <- struct{}{}
		synctest.Wait()
		time.Sleep(2 * time.Second)
		require.Equal(t, 2*time.Second, l.Stats().RunningStepAge, "it began when the one before it ended")
		require.Equal(t, 2*time.Second, l.Stats().LastStepAge)
		require.Equal(t, 4*time.Second, l.Stats().StepBound, "four times the longest step")
		close(f.gate)
		_, _, _, err = drain(t, s)
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, l.Stats().RunningStepAge)
	})
}

func TestStepBoundFollowsDeviceTime(t *testing.T) {
	// The bound of a step follows the device's time if that is longer.
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{}, func(f *fakeRunner) {
			f.lasts = func(*engine.Step) time.Duration { return time.Second }
		})
		s, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 4, PromptTopN: -1})
		require.NoError(t, err)
		begin := time.Now()
		_, _, _, err = drain(t, s)
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, time.Since(begin), "the steps follow each other without a gap")
		require.Equal(t, 4*time.Second, l.Stats().StepBound)
	})
}

func TestRefusedStepWaitsForPendingIDs(t *testing.T) {
	// A step that is refused while another is in flight waits for the ids of that one.
	var several atomic.Int64
	l, f := start(t, Config{}, func(f *fakeRunner) {
		f.gate = make(chan struct{}) // no step ends before all requests are there
		f.refuse = func(s *engine.Step) error {
			if len(s.Segments) > 1 {
				several.Add(1)
				return fmt.Errorf("not together: %w", engine.ErrInvalid)
			}
			return nil
		}
	})
	var streams []*Stream
	var requests []Request
	for i := range int32(4) {
		requests = append(requests, Request{Prompt: prompt(20, i), MaxTokens: 30, PromptTopN: -1})
		s, err := submit(l, requests[i])
		require.NoError(t, err)
		streams = append(streams, s)
	}
	close(f.gate)
	for i, s := range streams {
		got, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(requests[i]), got)
	}
	require.Positive(t, several.Load())
	require.EqualValues(t, several.Load(), l.Stats().RefusedSteps)
	require.Less(t, f.previous, 4*30, "pieces are computed one at a time, from known ids")
}

func TestANewRequestOfAnIdleLoopRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{}, func(f *fakeRunner) {
			f.lasts = func(*engine.Step) time.Duration { return time.Millisecond }
		})
		for range 3 {
			time.Sleep(time.Minute)
			s, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 1, PromptTopN: -1})
			require.NoError(t, err)
			begin := time.Now()
			_, _, _, err = drain(t, s)
			require.NoError(t, err)
			require.Equal(t, time.Millisecond, time.Since(begin))
		}
	})
}

func TestTheLoopReadsWhatIsInFlightBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{}, func(f *fakeRunner) {
			f.lasts = func(*engine.Step) time.Duration { return time.Second }
		})
		_, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 9, PromptTopN: -1})
		require.NoError(t, err)
		time.Sleep(time.Second / 2)
		stop(l)
		require.Empty(t, f.results, "the runner may be closed")
	})
}
