package batch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// poison is a token that refusing engines do not accept. Prompts of these tests have lower ids.
const poison = fakeVocab - 1

// refuseTokens refuses steps with such a token, as an engine does when it checks its arguments.
func refuseTokens(bad int32) func(*engine.Step) error {
	return func(s *engine.Step) error {
		for i := range s.Segments {
			if slices.Contains(s.Segments[i].Tokens, bad) {
				return fmt.Errorf("segment %d: token %d: %w", i, bad, engine.ErrInvalid)
			}
		}
		return nil
	}
}

func TestRefusedSequenceEndsAlone(t *testing.T) {
	// A refused sequence ends with the engine's error, and the others continue.
	for name, why := range map[string]error{
		"an argument": engine.ErrInvalid, "memory": engine.ErrOutOfMemory, "a state": engine.ErrPrecondition,
		"an ability": engine.ErrUnsupported, "damaged data": engine.ErrDataLoss, "an error without a name": errors.New("strange"),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := start(t, Config{}, func(f *fakeRunner) {
				bad := refuseTokens(poison)
				f.refuse = func(s *engine.Step) error {
					if bad(s) != nil {
						return fmt.Errorf("the engine's own words: %w", why)
					}
					return nil
				}
			})
			var good []Request
			var streams []*Stream
			submit := func(r Request) {
				s, err := submit(l, r)
				require.NoError(t, err)
				streams = append(streams, s)
			}
			for i := range int32(3) {
				good = append(good, Request{Prompt: prompt(20, i), MaxTokens: 40, PromptTopN: -1})
				require.NotContains(t, append(want(good[i]), good[i].Prompt...), int32(poison), "choose another seed")
				submit(good[i])
			}
			submit(Request{Prompt: []int32{1, 2, poison, 3}, MaxTokens: 5, PromptTopN: -1})
			_, _, _, err := drain(t, streams[3])
			require.ErrorIs(t, err, why)
			require.ErrorContains(t, err, "the engine's own words")
			require.NotErrorIs(t, err, ErrStepFailed)
			for i, r := range good {
				tokens, _, _, err := drain(t, streams[i])
				require.NoError(t, err)
				require.Equal(t, want(r), tokens)
			}
			require.Positive(t, l.Stats().RefusedSteps)
			submit(good[0])
			tokens, _, _, err := drain(t, streams[4])
			require.NoError(t, err, "the loop serves on")
			require.Equal(t, want(good[0]), tokens)
			require.Eventually(t, func() bool { return l.Idle() && l.Stats().FreeBlocks == 64 }, time.Minute, time.Millisecond)
		})
	}
}

func TestStepsThatDoNotFitAreSplit(t *testing.T) {
	// Steps that are too large for the free memory are computed in smaller ones.
	l, f := start(t, Config{Chunk: 64}, func(f *fakeRunner) {
		f.refuse = func(s *engine.Step) error {
			tokens := 0
			for i := range s.Segments {
				tokens += len(s.Segments[i].Tokens)
			}
			if tokens > 3 {
				return fmt.Errorf("%d tokens: %w", tokens, engine.ErrOutOfMemory)
			}
			return nil
		}
	})
	var streams []*Stream
	var requests []Request
	for i := range int32(4) {
		r := Request{Prompt: prompt(50, i), MaxTokens: 12, PromptTopN: int(i%2) - 1}
		s, err := submit(l, r)
		require.NoError(t, err)
		streams, requests = append(streams, s), append(requests, r)
	}
	for i, s := range streams {
		tokens, scores, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(requests[i]), tokens)
		if requests[i].PromptTopN >= 0 {
			require.Len(t, scores, 49)
		}
	}
	require.Equal(t, 3, f.largest)
}

func TestLostDeviceEndsTheLoop(t *testing.T) {
	// A lost device ends the loop at once, without trying smaller steps.
	asked := 0
	l, _ := start(t, Config{}, func(f *fakeRunner) {
		f.refuse = func(*engine.Step) error {
			asked++
			return fmt.Errorf("step 1: %w", engine.ErrDevice)
		}
	})
	for range 3 {
		_, _ = submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 9, PromptTopN: -1}) // the last ones may come too late
	}
	<-l.done
	require.Equal(t, 1, asked)
	require.Zero(t, l.Stats().RefusedSteps)
}

func TestAResultThatIsNotGivenIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 100
		l, _ := start(t, Config{}, func(f *fakeRunner) {
			f.keep = func() error {
				if left--; left > 0 {
					return fmt.Errorf("no room for the result: %w", engine.ErrOutOfMemory)
				}
				return nil
			}
		})
		r := Request{Prompt: prompt(20, 1), MaxTokens: 9, PromptTopN: -1}
		s, err := submit(l, r)
		require.NoError(t, err)
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(r), tokens)
	})
}

func TestARunnerThatKeepsAResultEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{}, func(f *fakeRunner) {
			f.keep = func() error { return fmt.Errorf("none is in flight: %w", engine.ErrPrecondition) }
		})
		s, err := submit(l, Request{Prompt: prompt(20, 1), MaxTokens: 9, PromptTopN: -1})
		require.NoError(t, err)
		begin := time.Now()
		_, _, _, err = drain(t, s)
		require.ErrorIs(t, err, ErrStepFailed)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.GreaterOrEqual(t, time.Since(begin), resultPatience)
		<-l.done
	})
}

func TestARefusedStepIsCutUntilOnePartIsLeft(t *testing.T) {
	a := part{seq: &sequence{age: 1}, count: 8}
	b, c := part{seq: &sequence{age: 2}, count: 1}, part{seq: &sequence{age: 3}, count: 1}
	for name, tc := range map[string]struct {
		parts []part
		why   error
		want  [][]part
	}{
		"several become two halves":                      {[]part{a, b, c}, engine.ErrInvalid, [][]part{{a}, {b, c}}},
		"also for want of memory":                        {[]part{a, b}, engine.ErrOutOfMemory, [][]part{{a}, {b}}},
		"one that needs less memory is shortened":        {[]part{a}, engine.ErrOutOfMemory, [][]part{{{seq: a.seq, count: 4}}}},
		"one whose argument is wrong is not tried again": {[]part{a}, engine.ErrInvalid, nil},
		"one token is the least":                         {[]part{b}, engine.ErrOutOfMemory, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, halves(tc.parts, tc.why)) })
	}
}

func TestRandomRefusalsKeepOtherTokens(t *testing.T) {
	// While the engine refuses some sequences, now and then or always, all others generate what
	// they would alone.
	refused := uint64(0)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := Config{
			Context: 300, Chunk: []int{0, 1, 7, 64}[rng.IntN(4)], YieldAfter: time.Nanosecond,
			Runner: engine.RunnerConfig{KVBlocks: 19 + rng.IntN(30), MaxSequences: 1 + rng.IntN(6)},
		}
		large := 1 + rng.IntN(20)
		l, _ := start(t, cfg, func(f *fakeRunner) {
			bad, moods := refuseTokens(poison), rand.New(rand.NewPCG(seed, 4))
			f.refuse = func(s *engine.Step) error {
				if len(s.Segments) > 1 && moods.IntN(5) == 0 {
					return fmt.Errorf("not these together: %w", engine.ErrPrecondition)
				}
				for i := range s.Segments {
					if len(s.Segments[i].Tokens) > large {
						return fmt.Errorf("segment %d: %w", i, engine.ErrOutOfMemory)
					}
				}
				return bad(s)
			}
		})
		var wg sync.WaitGroup
		for i := range 12 {
			r := Request{
				Prompt: prompt(1+rng.IntN(120), int32(i)), MaxTokens: 1 + rng.IntN(60), PromptTopN: rng.IntN(3) - 1,
				Params: engine.SlotParams{Seed: rng.Uint64()},
			}
			bad := slices.Contains(r.Prompt, poison)
			if rng.IntN(4) == 0 {
				r.Prompt[rng.IntN(len(r.Prompt))], bad = poison, true
			}
			// A token is computed once another follows it: the last one is never fed to the engine.
			expected := want(r)
			if at := slices.Index(expected[:len(expected)-1], poison); at >= 0 && !bad {
				expected, bad = expected[:at+1], true
			} else if bad {
				expected = nil
			}
			s, err := submit(l, r)
			require.NoError(t, err)
			wg.Go(func() {
				tokens, scores, _, err := drain(t, s)
				require.Equal(t, expected, tokens, "seed %d", seed)
				if bad {
					require.ErrorIs(t, err, engine.ErrInvalid, "seed %d", seed)
					return
				}
				require.NoError(t, err, "seed %d", seed)
				if r.PromptTopN >= 0 {
					require.Len(t, scores, len(r.Prompt)-1, "seed %d: every prompt token is scored once", seed)
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool { return l.Idle() }, time.Minute, time.Millisecond)
		require.Equal(t, cfg.Runner.KVBlocks, l.Stats().FreeBlocks)
		refused += l.Stats().RefusedSteps
	}
	require.NotZero(t, refused, "nothing was ever refused: the test shows nothing")
}
