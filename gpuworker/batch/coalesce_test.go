package batch

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestCoalescerMaxWait(t *testing.T) {
	const limit = 40 * time.Millisecond
	for name, tc := range map[string]struct {
		step        time.Duration
		arrivalRate float64
		decoding    int
		want        time.Duration
	}{
		"one every other step, 128 decode: 22 steps":      {time.Millisecond, 0.5, 128, 22627 * time.Microsecond},
		"the same with longer steps: the limit":           {7 * time.Millisecond, 0.5, 128, limit},
		"eight a step: few steps":                         {time.Millisecond, 8, 64, 4 * time.Millisecond},
		"one a step, one decodes: hardly longer than one": {time.Millisecond, 1, 1, 1414 * time.Microsecond},
		"a step longer than the limit, one comes a step":  {50 * time.Millisecond, 1, 64, 0},
		"a step longer than the limit, many come":         {50 * time.Millisecond, 2, 64, limit},
		"nobody is likely to come within the limit":       {7 * time.Millisecond, 0.1, 128, 0},
		"nobody is likely to come while it pays":          {time.Millisecond, 0.1, 4, 0},
		"nobody ever came":                                {time.Millisecond, 0, 128, 0},
		"no step has ended yet":                           {0, 1, 128, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := prefillCoalescer{limit: limit, grain: 1024, step: tc.step, arrivalRate: tc.arrivalRate}
			require.InDelta(t, float64(tc.want), float64(g.maxWait(tc.decoding)), float64(time.Microsecond))
		})
	}
}

// crowded returns a loop in which each of n callers sends one short prompt after another, all of
// the unnamed tenant. A step takes 5 ms, with prompts 6 ms more, and 1000 prompt tokens fill the
// device.
func crowded(t *testing.T, grain, callers int) (l *Loop, w *watched, end func()) {
	t.Helper()
	w = &watched{}
	cfg := Config{
		Grain: grain, SharedTarget: 40 * time.Millisecond, Context: 2000,
		Runner: engine.RunnerConfig{MaxSequences: callers + 4, KVBlocks: 4000, MaxBatchedTokens: 2048},
	}
	l, _ = start(t, cfg, func(f *fakeRunner) {
		timed(w, 5*time.Millisecond, 0)(f)
		note := f.lasts
		f.lasts = func(s *engine.Step) time.Duration {
			took := note(s)
			if w.steps[len(w.steps)-1].prefill > 0 {
				took += 6 * time.Millisecond
			}
			return took
		}
	})
	var wg sync.WaitGroup
	var over sync.Once
	stop := make(chan struct{})
	for c := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r := Request{Prompt: prompt(20+rng.IntN(40), int32(c)), MaxTokens: 20 + rng.IntN(60), PromptTopN: -1, Bypass: true}
				s, err := submit(l, r)
				require.NoError(t, err)
				tokens, _, _, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, want(r), tokens, "whenever its prompt is computed")
			}
		})
	}
	return l, w, func() { over.Do(func() { close(stop) }); wg.Wait() }
}

// decoded is how many steps had prompts, and how many there were, in some seconds of a crowd.
func decoded(t *testing.T, grain int) (prompts, steps int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, w, end := crowded(t, grain, 64)
		time.Sleep(10 * time.Second)
		w.Lock()
		for _, s := range w.steps {
			if steps++; s.prefill > 0 {
				prompts++
			}
		}
		w.Unlock()
		end()
	})
	return prompts, steps
}

func TestCoalescerComputesPromptsTogether(t *testing.T) {
	// Prompts that arrive one by one are computed together.
	promptsAtOnce, stepsAtOnce := decoded(t, 0)
	prompts, steps := decoded(t, 1000)
	t.Logf("of %d steps %d have prompts; %d of %d where prompts gather", stepsAtOnce, promptsAtOnce, prompts, steps)
	require.Less(t, prompts, promptsAtOnce/3, "fewer steps have prompts")
	require.Greater(t, steps, stepsAtOnce*5/4, "and so there are more in the same time")
}

func TestCoalescerExceptions(t *testing.T) {
	// A new prompt starts at once if its delay would serve only other tenants.
	for name, r := range map[string]Request{
		"a tenant of which nothing decodes":  {Tenant: "other"},
		"a priority above all that decode":   {Priority: 1},
		"a prompt that fills the device":     {Prompt: prompt(1100, 500)},
		"a sequence that goes on from a log": {Continuations: []Continuation{{Resumed: []int32{0}}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, end := crowded(t, 1000, 64)
				defer end()
				if r.Prompt == nil {
					r.Prompt = prompt(30, 400)
				}
				r.PromptTopN, r.MaxTokens, r.Bypass = -1, 4, true
				var longest time.Duration
				for i := range 20 {
					time.Sleep(500*time.Millisecond + time.Duration(i)*time.Millisecond)
					begin := time.Now()
					if r.Continuations != nil {
						_, _, _, err := drain(t, resume(t, l, r, 1))
						require.NoError(t, err)
					} else {
						run(t, l, r)
					}
					longest = max(longest, time.Since(begin))
				}
				// Two steps are in flight when it arrives, then come one with its prompt and three
				// decode-only ones. Each may have prompts.
				require.LessOrEqual(t, longest, 6*11*time.Millisecond)
			})
		})
	}
}

func TestLonePromptIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Grain: 1000, Runner: engine.RunnerConfig{MaxSequences: 8, KVBlocks: 1000}}
		l, _ := start(t, cfg, ticking)
		long, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 500, PromptTopN: -1})
		require.NoError(t, err)
		go func() { _, _, _, _ = drain(t, long) }()
		for range 20 {
			time.Sleep(20 * time.Millisecond)
			begin := time.Now()
			run(t, l, Request{Prompt: prompt(5, 2), MaxTokens: 1, PromptTopN: -1, Bypass: true})
			require.LessOrEqual(t, time.Since(begin), 3*time.Millisecond)
		}
		synctest.Wait() // until the last one's place is given back
		require.Equal(t, 1, l.Stats().Running, "another decodes all the while")
	})
}
