package batch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

var errOver = errors.New("the test is over")

// start runs a loop over a fake runner until the test ends, and then checks its final state.
func start(t *testing.T, cfg Config, adjust func(*fakeRunner)) (*Loop, *fakeRunner) {
	t.Helper()
	if cfg.Runner.MaxSequences == 0 {
		cfg.Runner.MaxSequences = 4
	}
	if cfg.Runner.KVBlocks == 0 {
		cfg.Runner.KVBlocks = 64
	}
	cfg.Runner.BlockSize = 16
	if cfg.Runner.MaxBatchedTokens == 0 {
		cfg.Runner.MaxBatchedTokens = 64
	}
	cfg.Runner.MaxSampleRows, cfg.Runner.MaxScoreRows = cfg.Runner.MaxSequences, 8
	if cfg.Context == 0 {
		cfg.Context = 512
	}
	f := newFake(cfg.Runner)
	if adjust != nil {
		adjust(f)
	}
	l := New(cfg, f, hclog.NewNullLogger())
	ctx, end := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	ends.Store(l, end)
	t.Cleanup(func() {
		end(errOver)
		ends.Delete(l)
		<-ended
		require.Zero(t, l.Stats().StepsAfterCancel)
		require.NoError(t, f.broken, "a step broke the contract")
	})
	return l, f
}

// ends has the context of each loop that start started.
var ends sync.Map

// stop ends a loop that start started before its test ends, and waits until it has ended.
func stop(l *Loop) {
	end, _ := ends.Load(l)
	end.(context.CancelCauseFunc)(errOver)
	<-l.done
}

func prompt(n int, seed int32) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = (seed*31 + int32(i)*7) % fakeVocab
	}
	return p
}

// want returns the tokens of a sequence, which must not depend on others.
func want(r Request) []int32 {
	history, out := append([]int32(nil), r.Prompt...), []int32(nil)
	for range r.MaxTokens {
		next := fakeToken(r.Params, history)
		history, out = append(history, next), append(out, next)
	}
	return out
}

// drain reads a stream to its end.
func drain(t *testing.T, s *Stream) (tokens []int32, scores []engine.RowResult, done *Done, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		events, err := s.Recv(ctx, nil)
		for _, e := range events {
			if e.Token != nil {
				tokens = append(tokens, e.Token.Token)
			}
			if e.Done != nil {
				done = e.Done
			}
			scores = append(scores, e.Scored...)
		}
		if err != nil || len(events) == 0 || done != nil {
			return tokens, scores, done, err
		}
	}
}

func TestASequenceGetsItsTokensAndItsEnd(t *testing.T) {
	l, _ := start(t, Config{}, nil)
	r := Request{Prompt: prompt(20, 1), MaxTokens: 30, PromptTopN: -1}
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, done, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(r), tokens)
	require.Equal(t, Length, done.Reason)
	require.Equal(t, 30, done.Generated)
	require.Eventually(t, func() bool { return l.Idle() && l.Stats().FreeBlocks == 64 }, time.Minute, time.Millisecond)
}

func TestAStopTokenEndsTheSequenceWithIt(t *testing.T) {
	l, _ := start(t, Config{}, nil)
	r := Request{Prompt: prompt(5, 2), MaxTokens: 30, PromptTopN: -1}
	all := want(r)
	r.StopIDs = []int32{all[11], -7}
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, done, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, all[:12], tokens)
	require.Equal(t, Stop, done.Reason)
	require.Equal(t, all[11], done.StopID)
}

func TestScoringCoversEveryPromptTokenButTheFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		class   engine.KernelClass
		largest int
	}{
		"8 score rows a step, and the last token needs none": {engine.Prefill, 9},
		"one position a step":                                {engine.Decode, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := start(t, Config{}, func(f *fakeRunner) { f.prompts = func(engine.SlotParams) engine.KernelClass { return tc.class } })
			r := Request{Prompt: prompt(50, 3), Class: tc.class, MaxTokens: 0, PromptTopN: 2}
			s, err := submit(l, r)
			require.NoError(t, err)
			_, scores, done, err := drain(t, s)
			require.NoError(t, err)
			require.Equal(t, Length, done.Reason)
			require.Len(t, scores, 49)
			for i, row := range scores {
				require.Equal(t, r.Prompt[i+1], row.Token)
				require.InDelta(t, -float32(i+1), row.Logprob, 0)
			}
			require.LessOrEqual(t, f.largest, tc.largest)
		})
	}
}

func TestRefusals(t *testing.T) {
	l, _ := start(t, Config{Context: 100, MaxWaiting: 2}, func(f *fakeRunner) { f.gate = make(chan struct{}) })
	for name, tc := range map[string]struct {
		request Request
		want    error
	}{
		"an empty prompt":               {Request{MaxTokens: 1}, engine.ErrInvalid},
		"a prompt beyond the context":   {Request{Prompt: prompt(101, 0)}, ErrTooLong},
		"a prompt that leaves no token": {Request{Prompt: prompt(100, 0), MaxTokens: 1}, ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := submit(l, tc.request)
			require.ErrorIs(t, err, tc.want)
		})
	}
	var full error
	for range 20 { // one runs for ever at the gate, four have slots, two wait
		if _, err := submit(l, Request{Prompt: prompt(5, 0), MaxTokens: 1, PromptTopN: -1}); err != nil {
			full = err
			break
		}
	}
	require.ErrorIs(t, full, ErrFull)
	l.Refuse(ErrClosed)
	_, err := submit(l, Request{Prompt: prompt(5, 0)})
	require.ErrorIs(t, err, ErrClosed)
}

func TestRequestsThatWentAwayLeaveRoomInTheQueue(t *testing.T) {
	cfg := Config{Context: 100, MaxWaiting: 1, Runner: engine.RunnerConfig{KVBlocks: 8, BlockSize: 16, MaxSequences: 1, MaxBatchedTokens: 64, MaxSampleRows: 1}}
	l := New(cfg, newFake(cfg.Runner), hclog.NewNullLogger())
	r := Request{Prompt: prompt(5, 0), MaxTokens: 1, PromptTopN: -1}
	gone, err := submit(l, r)
	require.NoError(t, err)
	_, err = submit(l, r)
	require.ErrorIs(t, err, ErrFull)
	gone.Cancel()
	<-l.wake // the loop has just been woken when it finds both
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	defer func() { stop(errOver); <-ended }()
	_, _, _, err = drain(t, gone)
	require.ErrorIs(t, err, ErrCancelled)
	require.Eventually(t, func() bool { _, err := submit(l, r); return err == nil }, time.Minute, time.Millisecond)
}

func TestHangAtTheEndKeepsTheCause(t *testing.T) {
	// A step that hangs when the loop is ended does not hide why it ended.
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Context: 100, Runner: engine.RunnerConfig{KVBlocks: 8, BlockSize: 16, MaxSequences: 1, MaxBatchedTokens: 64, MaxSampleRows: 1}}
		f := newFake(cfg.Runner)
		f.gate = make(chan struct{})
		l := New(cfg, f, hclog.NewNullLogger())
		ctx, stop := context.WithCancelCause(t.Context())
		go func() { _ = l.Run(ctx) }()
		s, err := submit(l, Request{Prompt: prompt(5, 0), MaxTokens: 1, PromptTopN: -1})
		require.NoError(t, err)
		synctest.Wait()
		stop(errOver)
		_, err = s.Recv(context.Background(), nil)
		require.ErrorIs(t, err, errOver)
		require.ErrorIs(t, err, engine.ErrTimeout)
	})
}

func TestANaNRowFailsOnlyItsOwnSequence(t *testing.T) {
	l, _ := start(t, Config{}, func(f *fakeRunner) { f.nanSlot = 0; f.gate = make(chan struct{}, 1000) })
	a, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 9, PromptTopN: -1})
	require.NoError(t, err)
	r := Request{Prompt: prompt(5, 2), MaxTokens: 9, PromptTopN: -1}
	b, err := submit(l, r)
	require.NoError(t, err)
	for range 100 {
		l.runner.(*fakeRunner).gate <- struct{}{}
	}
	_, _, _, err = drain(t, a)
	require.ErrorIs(t, err, ErrBadLogits)
	tokens, _, _, err := drain(t, b)
	require.NoError(t, err)
	require.Equal(t, want(r), tokens)
}

func TestAFailedStepEndsEverySequenceAndTheLoop(t *testing.T) {
	l, _ := start(t, Config{}, func(f *fakeRunner) { f.failAt = 3 })
	s, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 90, PromptTopN: -1})
	require.NoError(t, err)
	_, _, _, err = drain(t, s)
	require.ErrorIs(t, err, ErrStepFailed)
	require.ErrorIs(t, err, engine.ErrDevice)
	<-l.done
	_, err = submit(l, Request{Prompt: prompt(5, 1)})
	require.ErrorIs(t, err, ErrClosed)
}

func TestCancelFreesBlocks(t *testing.T) {
	// A cancelled sequence is in no later step, and its blocks are freed.
	l, f := start(t, Config{}, nil)
	s, err := submit(l, Request{Prompt: prompt(40, 1), MaxTokens: 400, PromptTopN: -1})
	require.NoError(t, err)
	_, err = s.Recv(t.Context(), nil)
	require.NoError(t, err)
	s.Cancel()
	s.Cancel()
	require.Eventually(t, func() bool { return l.Idle() && l.Stats().FreeBlocks == 64 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, l.Stats().Cancelled)

	steps, tokens := f.computed()
	other, err := submit(l, Request{Prompt: prompt(5, 2), MaxTokens: 9, PromptTopN: -1})
	require.NoError(t, err)
	_, _, _, err = drain(t, other)
	require.NoError(t, err)
	later, more := f.computed()
	require.Equal(t, steps+9, later)
	require.Equal(t, tokens+5+8, more, "later steps hold the other sequence alone")
}

func TestSlowConsumerPausesOnlyItself(t *testing.T) {
	// A reader that does not read pauses only its own sequence.
	l, _ := start(t, Config{Context: 4096, Runner: engine.RunnerConfig{KVBlocks: 600}}, nil)
	_, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 4000, PromptTopN: -1})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().GeneratedTokens >= bufferLimit }, time.Minute, time.Millisecond)
	r := Request{Prompt: prompt(5, 2), MaxTokens: 300, PromptTopN: -1}
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(r), tokens)
	require.EqualValues(t, bufferLimit+300, l.Stats().GeneratedTokens, "the unread sequence went on")
}

func TestSlowConsumerYieldsItsSlot(t *testing.T) {
	// A slow consumer yields its slot to waiting sequences and later continues where it was.
	l, _ := start(t, Config{YieldAfter: time.Millisecond, StallLimit: time.Hour, Runner: engine.RunnerConfig{MaxSequences: 2}}, nil)
	slow := Request{Prompt: prompt(5, 1), MaxTokens: 4 * bufferLimit, PromptTopN: -1}
	var stalled []*Stream
	for range 4 { // two more than there are slots
		s, err := submit(l, slow)
		require.NoError(t, err)
		stalled = append(stalled, s)
	}
	for i := range int32(3) {
		r := Request{Prompt: prompt(7, 2+i), MaxTokens: 9, PromptTopN: -1}
		s, err := submit(l, r)
		require.NoError(t, err)
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(r), tokens)
	}
	require.Positive(t, l.Stats().Preempted)
	for _, s := range stalled {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(slow), tokens)
	}
	require.Eventually(t, l.Idle, time.Minute, time.Millisecond)
}

func TestStallLimitEndsASlowConsumer(t *testing.T) {
	// A reader that stalls others for too long loses its sequence.
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 1}}, nil)
		slow, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 400, PromptTopN: -1})
		require.NoError(t, err)
		synctest.Wait()
		r := Request{Prompt: prompt(5, 2), MaxTokens: 3, PromptTopN: -1}
		next, err := submit(l, r)
		require.NoError(t, err)
		tokens := make(chan []int32)
		go func() {
			got, _, _, _ := drain(t, next)
			tokens <- got
		}()
		time.Sleep(40 * time.Second)
		_, err = slow.Recv(t.Context(), nil)
		require.NoError(t, err, "what was generated is still delivered")
		_, err = slow.Recv(t.Context(), nil)
		require.ErrorIs(t, err, ErrSlowReader)
		require.Equal(t, want(r), <-tokens)
	})
}

func TestAStepThatHangsShowsInTheStats(t *testing.T) {
	l, f := start(t, Config{}, func(f *fakeRunner) { f.gate = make(chan struct{}) })
	require.Zero(t, l.Stats().RunningStepAge, "an idle loop never looks hung")
	_, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 1, PromptTopN: -1})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().RunningStepAge > time.Millisecond }, time.Minute, time.Millisecond)
	f.gate <- struct{}{}
	require.Eventually(t, func() bool { return l.Stats().RunningStepAge == 0 }, time.Minute, time.Millisecond)
}

// Random other requests, cancellations, slow consumers, chunk sizes and a cache too small for all:
// each sequence must generate its own tokens. The fake runner checks every step for broken
// rules.
func TestRandomCompanyNeverChangesTheTokens(t *testing.T) {
	preempted := uint64(0)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		cfg := Config{
			Context: 300, Chunk: []int{0, 1, 7, 64}[rng.IntN(4)], YieldAfter: time.Nanosecond,
			Runner: engine.RunnerConfig{KVBlocks: 19 + rng.IntN(30), MaxSequences: 1 + rng.IntN(6)},
		}
		l, _ := start(t, cfg, nil)
		var wg sync.WaitGroup
		for i := range 12 {
			r := Request{
				Prompt: prompt(1+rng.IntN(120), int32(i)), MaxTokens: 1 + rng.IntN(150), PromptTopN: rng.IntN(3) - 1,
				Params: engine.SlotParams{Seed: rng.Uint64()},
			}
			cancelAfter := 1000
			if rng.IntN(4) == 0 {
				cancelAfter = rng.IntN(50)
			}
			s, err := submit(l, r)
			require.NoError(t, err)
			wg.Go(func() {
				var tokens []int32
				scores := 0
				for {
					events, err := s.Recv(t.Context(), nil)
					if err != nil || len(events) == 0 {
						require.NoError(t, err)
						break
					}
					for _, e := range events {
						if e.Token != nil {
							tokens = append(tokens, e.Token.Token)
						}
						scores += len(e.Scored)
					}
					if len(tokens) > cancelAfter {
						s.Cancel()
						return
					}
				}
				require.Equal(t, want(r), tokens, "seed %d", seed)
				if r.PromptTopN >= 0 {
					require.Equal(t, len(r.Prompt)-1, scores, "seed %d: every prompt token is scored once", seed)
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool { return l.Idle() }, time.Minute, time.Millisecond)
		require.Equal(t, cfg.Runner.KVBlocks, l.Stats().FreeBlocks)
		preempted += l.Stats().Preempted
	}
	require.NotZero(t, preempted, "the cache was never too small: the test shows nothing")
}

// submit submits a request of one continuation.
func submit(l *Loop, r Request) (*Stream, error) {
	r.Continuations = []Continuation{{OutputIndex: r.Params.OutputIndex}}
	streams, err := l.Submit(r)
	if err != nil {
		return nil, err
	}
	return streams[0], nil
}
