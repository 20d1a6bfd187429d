package batch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestSlowConsumersDoNotBlockTheQueue(t *testing.T) {
	// Paused sequences precede others in the queue, and there may be any number of them. They must
	// not keep others from a slot.
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{YieldAfter: 10 * time.Millisecond, StallLimit: time.Hour}, ticking)
		slow := Request{Prompt: prompt(5, 1), MaxTokens: 400, PromptTopN: -1, Bypass: true}
		for range maxPassed + 10 {
			_, err := submit(l, slow)
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Second) // each had its slot and lost it
		s, err := submit(l, Request{Prompt: prompt(20, 2), MaxTokens: 10, PromptTopN: -1})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Recv(ctx, nil)
		require.NoError(t, err)
	})
}

func TestPrefillAlternatesBetweenTenants(t *testing.T) {
	// Tenants with slots take turns in prefill: many prompts of one do not delay the first token of
	// another.
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Chunk: 64, Runner: engine.RunnerConfig{MaxSequences: 64, KVBlocks: 2000, MaxBatchedTokens: 256}}
		l, _ := start(t, cfg, ticking)
		r := &race{t: t, l: l, first: map[string]time.Duration{}}
		for i := range int32(40) {
			r.enter(fmt.Sprint("many ", i), Request{Prompt: prompt(400, i), MaxTokens: 5, PromptTopN: -1, Tenant: "x", Bypass: true})
		}
		time.Sleep(5 * time.Millisecond)
		r.enter("one", Request{Prompt: prompt(100, 200), MaxTokens: 5, PromptTopN: -1, Tenant: "y", Bypass: true})
		r.wg.Wait()
		// Two steps are in flight when it arrives. Then its two chunks alternate with the other
		// tenant's.
		require.LessOrEqual(t, r.first["one"], 7*time.Millisecond)
	})
}

func TestNoWaitForALessUrgentProducer(t *testing.T) {
	// More urgent sequences may delay a producer for any time. Only sequences of its own priority
	// wait for it.
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Chunk: 64, Runner: engine.RunnerConfig{MaxSequences: 8, KVBlocks: 2000}}
		l, _ := start(t, cfg, ticking)
		r := &race{t: t, l: l, first: map[string]time.Duration{}}
		r.enter("low", Request{Prompt: prompt(400, 1), MaxTokens: 5, PromptTopN: -1})
		time.Sleep(2 * time.Millisecond)
		for i := range int32(6) {
			r.enter(fmt.Sprint("middle ", i), Request{Prompt: prompt(500, 2+i), MaxTokens: 5, PromptTopN: -1, Priority: 1, Bypass: true})
		}
		high := Request{Prompt: append(prompt(400, 1), 5), MaxTokens: 5, PromptTopN: -1, Priority: 2}
		r.enter("high", high)
		twin := high
		twin.Params.Seed = 1
		twin.MaxTokens = 6
		twin.Priority = 2
		r.enter("twin", twin)
		r.wg.Wait()
		require.LessOrEqual(t, r.first["high"], 10*time.Millisecond, "as if it were alone")
		require.Less(t, r.first["twin"], 14*time.Millisecond)
	})
}

// A request that needs the whole cache gets it from sequences of lower priority.
func TestAnUrgentRequestMayTakeAllBlocks(t *testing.T) {
	for _, n := range []int{143, 144, 145, 159, 160} {
		t.Run(fmt.Sprint(n, " tokens of 160"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := start(t, Config{Runner: engine.RunnerConfig{KVBlocks: 10, MaxSequences: 2}}, ticking)
				r := &race{t: t, l: l, first: map[string]time.Duration{}}
				r.enter("low", Request{Prompt: prompt(20, 1), MaxTokens: 120, PromptTopN: -1})
				time.Sleep(5 * time.Millisecond)
				begin := time.Now()
				s, err := submit(l, Request{Prompt: prompt(n, 2), MaxTokens: min(1, 160-n), PromptTopN: -1, Priority: 1})
				require.NoError(t, err)
				_, _, done, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, Length, done.Reason)
				require.LessOrEqual(t, time.Since(begin), 6*time.Millisecond)
				r.wg.Wait()
			})
		})
	}
}
