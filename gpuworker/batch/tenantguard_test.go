package batch

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// large is a device like a large GPU, and small one like a CPU.
var (
	large = lasting(3900*time.Microsecond, 33*time.Microsecond, 27*time.Microsecond)
	small = lasting(5*time.Millisecond, 2*time.Millisecond, 500*time.Microsecond)
)

// lasting returns a device whose steps take base, and more for each decode row and prompt token.
func lasting(step, row, token time.Duration) func(*fakeRunner) {
	return func(f *fakeRunner) {
		f.lasts = func(s *engine.Step) time.Duration {
			took := step
			for i := range s.Segments {
				if s.Segments[i].Class == engine.Decode {
					took += row
				} else {
					took += time.Duration(len(s.Segments[i].Tokens)) * token
				}
			}
			return took
		}
	}
}

// onDevice returns a loop over such a device.
func onDevice(t *testing.T, device func(*fakeRunner)) *Loop {
	t.Helper()
	l, _ := start(t, Config{
		SharedTarget: 40 * time.Millisecond, Context: 300, Grain: 1024,
		Runner: engine.RunnerConfig{MaxSequences: 128, KVBlocks: 4000, MaxBatchedTokens: 2048},
	}, device)
	return l
}

// keep keeps calls of each tenant running, of the request that is made for each, until end is
// called. end returns the tokens a second that the tenants had until then. A tenant's name is its
// index.
func keep(t *testing.T, l *Loop, made func(tenant string, seed int32) Request, calls ...int) (end func() float64) {
	t.Helper()
	var wg sync.WaitGroup
	var all atomic.Int64
	stop := make(chan struct{})
	seed := int32(1000)
	for tenant, n := range calls {
		for range n {
			seed++
			r := made(strconv.Itoa(tenant), seed)
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					s, err := submit(l, r)
					require.NoError(t, err)
					for {
						events, err := s.Recv(context.Background(), nil)
						if len(events) == 0 {
							require.NoError(t, err)
							break
						}
						for _, e := range events {
							if e.Token != nil {
								all.Add(1)
							}
						}
					}
				}
			})
		}
	}
	begin, once := time.Now(), sync.Once{}
	finish := func() { once.Do(func() { close(stop); wg.Wait() }) }
	t.Cleanup(finish) // of a test that fails too, before its loop is closed
	return func() float64 {
		rate := float64(all.Load()) / time.Since(begin).Seconds()
		finish()
		return rate
	}
}

// call is a request of 128 prompt tokens for 64 tokens.
func call(tenant string, seed int32) Request {
	return Request{Prompt: prompt(128, seed), MaxTokens: 64, PromptTopN: -1, Bypass: true, Tenant: tenant}
}

// took is how long a call takes.
func took(t *testing.T, l *Loop, r Request) time.Duration {
	t.Helper()
	begin := time.Now()
	run(t, l, r)
	return time.Since(begin)
}

func TestGuardGivesASingleCallHalfTheDevice(t *testing.T) {
	// A tenant with one call gets half of the device although another has one hundred calls.
	synctest.Test(t, func(t *testing.T) {
		l := onDevice(t, large)
		idle := took(t, l, call("one", 1))
		alone := keep(t, l, call, 100)
		time.Sleep(3 * time.Second)
		without := alone()
		end := keep(t, l, call, 100)
		time.Sleep(2 * time.Second)
		longest := time.Duration(0)
		for seed := range int32(10) {
			longest = max(longest, took(t, l, call("one", 10+seed)))
		}
		with := end()
		t.Logf("idle %v, beside a crowd at most %v; the crowd has %.0f tokens/s, %.0f without", idle, longest, with, without)
		require.LessOrEqual(t, longest, 2*idle+2*40*time.Millisecond)
		require.Greater(t, with, without/2)
	})
}

func TestGuardLeavesTheCrowdItsHalf(t *testing.T) {
	// Whatever a small tenant does, a large one keeps its half of the device.
	scored := func(tenant string, seed int32) Request {
		r := call(tenant, seed)
		r.MaxTokens = 1
		return r
	}
	urgent := func(tenant string, seed int32) Request {
		r := call(tenant, seed)
		r.Priority = 1
		return r
	}
	for name, tc := range map[string]struct {
		device func(*fakeRunner)
		other  func(string, int32) Request // requests of the small tenant
		crowd  func(string, int32) Request
		least  float64 // share of its speed alone
	}{
		"beside answers":                        {large, call, call, 0.5},
		"beside prompts without an answer":      {large, scored, call, 0.5},
		"on a device whose steps last by rows":  {small, call, call, 0.5},
		"the same beside prompts alone":         {small, scored, call, 0.5},
		"whose calls are urgent, beside others": {large, call, urgent, 0.95},
	} {
		t.Run(name, func(t *testing.T) {
			rate := func(beside bool) (rate float64) {
				synctest.Test(t, func(t *testing.T) {
					l := onDevice(t, tc.device)
					took(t, l, call("one", 1))
					end := keep(t, l, tc.crowd, 100)
					other := func() float64 { return 0 }
					if beside {
						other = keep(t, l, func(_ string, seed int32) Request { return tc.other("one", seed) }, 1)
					}
					time.Sleep(4 * time.Second)
					rate = end()
					other()
				})
				return rate
			}
			with, without := rate(true), rate(false)
			t.Logf("%.0f tokens/s, %.0f alone", with, without)
			require.Greater(t, with, tc.least*without)
		})
	}
}

func TestUnknownSoloTimeHoldsNothingBack(t *testing.T) {
	// What a tenant would have alone is unknown if others were there from the beginning: nothing is
	// held back.
	rate := func(beside bool) (rate float64) {
		synctest.Test(t, func(t *testing.T) {
			l := onDevice(t, large)
			end := keep(t, l, call, 100)
			time.Sleep(time.Second)
			other := func() float64 { return 0 }
			if beside {
				other = keep(t, l, func(_ string, seed int32) Request {
					r := call("one", seed)
					r.MaxTokens = 170
					return r
				}, 2)
			}
			time.Sleep(3 * time.Second)
			rate = end()
			other()
		})
		return rate
	}
	require.Greater(t, rate(true), 0.9*rate(false))
}

func TestEqualTenantsHoldNothingBack(t *testing.T) {
	// Tenants of equal size continue as if the guard did not exist.
	for name, calls := range map[string][]int{
		"a tenant alone":                {100},
		"tenants with as many calls":    {50, 50},
		"many tenants with a few calls": {10, 10, 10, 10, 10, 10, 10, 10, 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			rate := func(known bool) (rate float64) {
				synctest.Test(t, func(t *testing.T) {
					l := onDevice(t, large)
					if known {
						took(t, l, call("first", 1))
					}
					end := keep(t, l, call, calls...)
					time.Sleep(3 * time.Second)
					rate = end()
				})
				return rate
			}
			require.InEpsilon(t, rate(false), rate(true), 0.05)
		})
	}
}

func TestHeldBackPromptsAreCounted(t *testing.T) {
	// The count of held-back prompts is 0 among equal tenants, grows next to a small one, and ends
	// at 0.
	synctest.Test(t, func(t *testing.T) {
		l := onDevice(t, large)
		took(t, l, call("one", 1))
		end := keep(t, l, call, 50, 50)
		time.Sleep(2 * time.Second)
		before := l.Stats().HeldBackTime
		require.Less(t, before, time.Second, "of two hundred seconds of calls: who is ahead by a few tokens waits for a step")
		const watched = 2000
		other := keep(t, l, func(_ string, seed int32) Request { return call("one", seed) }, 1)
		seen := time.Duration(0)
		for range watched {
			time.Sleep(time.Millisecond)
			seen += time.Duration(l.Stats().HeldBack) * time.Millisecond
		}
		told := l.Stats().HeldBackTime - before
		t.Logf("%v told, %v seen", told, seen)
		require.Positive(t, seen)
		require.InEpsilon(t, seen.Seconds(), told.Seconds(), 0.1, "its rate is how many wait")
		end()
		other()
		synctest.Wait()
		require.Zero(t, l.Stats().HeldBack)
	})
}
