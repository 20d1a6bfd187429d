package batch

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ticking makes every step take a millisecond.
func ticking(f *fakeRunner) {
	f.lasts = func(*engine.Step) time.Duration { return time.Millisecond }
}

// race runs requests that are submitted in order and records the order of their first tokens.
type race struct {
	t     *testing.T
	l     *Loop
	wg    sync.WaitGroup
	mu    sync.Mutex
	order []string
	first map[string]time.Duration // from submission
}

func (r *race) enter(name string, request Request) *Stream {
	r.t.Helper()
	begin := time.Now()
	s, err := submit(r.l, request)
	require.NoError(r.t, err)
	r.wg.Go(func() {
		var tokens []int32
		for {
			events, err := s.Recv(r.t.Context(), nil)
			if err != nil || len(events) == 0 {
				break
			}
			for _, e := range events {
				if e.Token != nil {
					tokens = append(tokens, e.Token.Token)
				}
			}
			r.mu.Lock()
			if len(tokens) > 0 && !slices.Contains(r.order, name) {
				r.order = append(r.order, name)
				r.first[name] = time.Since(begin)
			}
			r.mu.Unlock()
		}
		require.Equal(r.t, want(request), tokens, name)
	})
	return s
}

func TestSlotsGoByPriorityTenantAge(t *testing.T) {
	plain := func(tenant string, priority int32) Request {
		return Request{Prompt: prompt(20, 1), MaxTokens: 10, PromptTopN: -1, Bypass: true, Tenant: tenant, Priority: priority}
	}
	for name, tc := range map[string]struct {
		requests []Request
		want     []string
	}{
		"by age among equals": {
			[]Request{plain("", 0), plain("", 0), plain("", 0)}, []string{"a", "b", "c"},
		},
		"the more urgent first": {
			[]Request{plain("", 0), plain("", -5), plain("", 7), plain("", 3)}, []string{"a", "c", "d", "b"},
		},
		"tenants in turn": {
			[]Request{plain("x", 0), plain("x", 0), plain("x", 0), plain("y", 0), plain("y", 0)}, []string{"a", "d", "b", "e", "c"},
		},
		"urgency before fairness": {
			[]Request{plain("x", 1), plain("x", 1), plain("x", 1), plain("y", 0)}, []string{"a", "b", "c", "d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 1}}, ticking)
				r := &race{t: t, l: l, first: map[string]time.Duration{}}
				r.enter("a", tc.requests[0])
				time.Sleep(time.Millisecond / 2) // until it runs
				for i, request := range tc.requests[1:] {
					r.enter(string(rune('b'+i)), request)
				}
				r.wg.Wait()
				require.Equal(t, tc.want, r.order)
			})
		})
	}
}

func TestAdmitPreemptsTheLeastUrgent(t *testing.T) {
	// A more urgent request takes the slot of the least urgent sequence.
	for name, runner := range map[string]engine.RunnerConfig{
		"for want of a slot": {MaxSequences: 3},
		"for want of blocks": {MaxSequences: 8, KVBlocks: 20},
		"with host memory":   {MaxSequences: 3, HostBlocks: 64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := start(t, Config{Runner: runner, BlockBytes: 1}, ticking)
				r := &race{t: t, l: l, first: map[string]time.Duration{}}
				low := func(seed int32, priority int32) Request {
					return Request{Prompt: prompt(50, seed), MaxTokens: 60, PromptTopN: -1, Priority: priority}
				}
				r.enter("old", low(1, 0))
				r.enter("middle", low(2, 1))
				r.enter("young", low(3, 0))
				time.Sleep(20 * time.Millisecond)
				require.Equal(t, 3, l.Stats().Running)
				urgent := low(4, 2)
				urgent.Prompt, urgent.MaxTokens = prompt(90, 4), 5
				r.enter("urgent", urgent)
				time.Sleep(20 * time.Millisecond)
				require.EqualValues(t, 1, l.Stats().Preempted, "one place is enough")
				require.Contains(t, r.first, "urgent")
				require.LessOrEqual(t, r.first["urgent"], 8*time.Millisecond)
				r.wg.Wait()
			})
		})
	}
}

func TestEqualTenantsNeverPreempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 2}}, ticking)
		r := &race{t: t, l: l, first: map[string]time.Duration{}}
		for i := range int32(10) {
			r.enter(string('a'+i), Request{Prompt: prompt(20, i), MaxTokens: 30, PromptTopN: -1, Priority: 5, Tenant: "x"})
		}
		r.wg.Wait()
		require.Zero(t, l.Stats().Preempted)
	})
}

func TestShareGivesASingleCallASlot(t *testing.T) {
	// A tenant with one call gets a slot although another tenant sent one hundred.
	for name, host := range map[string]int{"by recomputation": 0, "by swap": 64} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := start(t, Config{BlockBytes: 1 << 20, Runner: engine.RunnerConfig{HostBlocks: host}}, ticking)
				r := &race{t: t, l: l, first: map[string]time.Duration{}}
				for i := range int32(100) {
					r.enter("many "+string('0'+i), Request{Prompt: prompt(40, i), MaxTokens: 60, PromptTopN: -1, Tenant: "x"})
				}
				time.Sleep(30 * time.Millisecond)
				r.enter("one", Request{Prompt: prompt(40, 200), MaxTokens: 10, PromptTopN: -1, Tenant: "y"})
				r.wg.Wait()
				// Alone it takes a step. Here two are in flight when it arrives, and its slot is
				// free after them.
				require.LessOrEqual(t, r.first["one"], 6*time.Millisecond)
				require.EqualValues(t, 1, l.Stats().Preempted)
				require.Equal(t, host > 0, l.Stats().Swapped > 0)
			})
		})
	}
}

// However often tenants arrive with short calls, preemptions for fairness cost a bounded part of
// the time.
func TestFairnessPreemptsRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Context: 4000, Runner: engine.RunnerConfig{KVBlocks: 1000, MaxBatchedTokens: 256}}, func(f *fakeRunner) {
			f.lasts = func(s *engine.Step) time.Duration {
				took := time.Millisecond
				for i := range s.Segments {
					took += time.Duration(len(s.Segments[i].Tokens)) * 50 * time.Microsecond
				}
				return took
			}
		})
		r := &race{t: t, l: l, first: map[string]time.Duration{}}
		useful, begin := 0, time.Now()
		for i := range int32(8) {
			q := Request{Prompt: prompt(1500, i), MaxTokens: 400, PromptTopN: -1, Tenant: "x", Bypass: true}
			useful += len(q.Prompt) + q.MaxTokens - 1
			r.enter("long "+string('0'+i), q)
		}
		for i := range int32(100) {
			time.Sleep(20 * time.Millisecond)
			q := Request{Prompt: prompt(3, i), MaxTokens: 1, PromptTopN: -1, Tenant: "y" + string(i), Bypass: true}
			useful += 3
			r.enter("short "+string(i), q)
		}
		r.wg.Wait()
		require.Positive(t, l.Stats().Preempted)
		_, computed := f.computed()
		lost := time.Duration(computed-useful) * 54 * time.Microsecond // cost of a token in full chunks
		require.Less(t, lost, time.Since(begin)/8+100*time.Millisecond, "%d preemptions", l.Stats().Preempted)
	})
}
