package batch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// tiered adds a host tier to the configuration of a loop.
func tiered(cfg Config, tier Tier) Config {
	cfg.Tier = tier
	cfg.Runner.HostBlocks += tier.Blocks
	cfg.Runner.HostWindowBlocks += tier.WindowBlocks
	cfg.Runner.HostStates += tier.States
	return cfg
}

// tierModels are the kinds of models, with a cache that holds one prompt of 200 tokens.
func tierModels() map[string]Config {
	return map[string]Config{
		"blocks":  tiered(Config{BlockBytes: 1, Runner: engine.RunnerConfig{KVBlocks: 16}}, Tier{Blocks: 64}),
		"windows": tiered(Config{BlockBytes: 1, WindowBlockBytes: 1, Window: 40, Runner: engine.RunnerConfig{KVBlocks: 16, WindowBlocks: 9}}, Tier{Blocks: 64, WindowBlocks: 30}),
		"states":  tiered(Config{BlockBytes: 1, StateBytes: 1, States: true, Runner: engine.RunnerConfig{KVBlocks: 16, SavedStates: 1}}, Tier{Blocks: 64, States: 10}),
	}
}

func startTier(t *testing.T, cfg Config, adjust func(*fakeRunner)) (*Loop, *fakeRunner) {
	t.Helper()
	return start(t, cfg, func(f *fakeRunner) {
		f.stateful, f.window, f.oneClass = cfg.States, cfg.Window, cfg.OneClass
		if adjust != nil {
			adjust(f)
		}
	})
}

// ask is a prompt of 200 tokens of its own.
func ask(seed int32) Request { return Request{Prompt: prompt(200, seed), MaxTokens: 4, PromptTopN: -1} }

// arrive adds requests that start in one round, and returns their streams. before, if it is not
// nil, gets each sequence before it starts.
func arrive(l *Loop, before func(*sequence), requests ...Request) (streams []*Stream) {
	l.inbox.Lock()
	for _, r := range requests {
		r.Continuations = []Continuation{{}}
		s := newSequence(l, r, 0)
		streams = append(streams, s.stream)
		l.inbox.arrivals = append(l.inbox.arrivals, s)
		l.counters.waiting.Add(1)
		if before != nil {
			before(s)
		}
	}
	l.inbox.Unlock()
	l.nudge()
	return streams
}

func TestEvictedPrefixesAreRecalled(t *testing.T) {
	// A prompt that others displaced from the device is asked again, and its last block is computed.
	for name, cfg := range tierModels() {
		t.Run(name, func(t *testing.T) {
			l, f := startTier(t, cfg, nil)
			for seed := range int32(3) {
				require.Zero(t, runCached(t, l, ask(seed)))
			}
			for seed := range int32(3) {
				_, before := f.computed()
				require.Equal(t, 192, runCached(t, l, ask(seed)), "prompt %d", seed)
				_, after := f.computed()
				require.Equal(t, 200-192+3, after-before, "the rest of the prompt, and three of four tokens")
			}
			stop(l)
			require.NoError(t, f.broken)
			stats := l.Stats()
			require.EqualValues(t, 3, stats.TierRecalls)
			require.Positive(t, stats.TierInBytes)
			require.Positive(t, stats.TierOutBytes)
			require.LessOrEqual(t, stats.TierBytes, stats.TotalTierBytes)
			require.Zero(t, stats.TotalHostBlocks, "these are of preempted sequences")
		})
	}
}

func TestPrefixesWithoutPartsComeWholeOrNotAtAll(t *testing.T) {
	// The only state, and the only window blocks, are those of the prompt's end. Where a step has
	// no room for all copies, chunks are as long as ever.
	for _, name := range []string{"windows", "states"} {
		for moves, cached := range map[int]int{16: 0, 34: 192} {
			t.Run(fmt.Sprintf("%s, %d moves", name, moves), func(t *testing.T) {
				cfg := tierModels()[name]
				cfg.moves, cfg.Chunk = moves, 32
				l, f := startTier(t, cfg, nil)
				for seed := range int32(3) {
					require.Zero(t, runCached(t, l, ask(seed)))
				}
				before := l.Stats().Steps
				require.Equal(t, cached, runCached(t, l, ask(0)))
				require.EqualValues(t, (200-cached+31)/32+3, l.Stats().Steps-before, "chunks, and three tokens")
				stop(l)
				require.NoError(t, f.broken)
			})
		}
	}
}

func TestLongPromptsLeaveOtherEnds(t *testing.T) {
	// A long prompt saves more states than the host has room for. The state at the end of an earlier
	// prompt outlives them, so that the whole prompt comes back.
	for _, states := range []int{4, 5, 10} {
		t.Run(fmt.Sprintf("%d states", states), func(t *testing.T) {
			l, f := startTier(t, tiered(Config{
				BlockBytes: 1, StateBytes: 1, States: true, StateInterval: 64, Runner: engine.RunnerConfig{KVBlocks: 50, SavedStates: 4},
			}, Tier{Blocks: 400, States: states}), nil)
			long := func(seed int32) Request { return Request{Prompt: prompt(500, seed), MaxTokens: 4, PromptTopN: -1} }
			for seed := range int32(3) {
				require.Zero(t, runCached(t, l, long(seed)))
			}
			require.Equal(t, 496, runCached(t, l, long(0)))
			stop(l)
			require.NoError(t, f.broken)
		})
	}
}

func TestPrefixesAreComputedWhereCopiesDoNotPay(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		prompt int
	}{
		"a slow link":               {func(c *Config) { c.BlockBytes = 1 << 40 }, 200},
		"a short prefix":            {func(*Config) {}, 60},
		"without a tier":            {func(c *Config) { c.Tier, c.Runner.HostBlocks = Tier{}, 0 }, 200},
		"states without saved ones": {func(c *Config) { c.States, c.StateBytes = true, 1 }, 200},
		"a tier too tiny":           {func(c *Config) { c.Tier.Blocks, c.Runner.HostBlocks = 2, 2 }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tierModels()["blocks"]
			tc.change(&cfg)
			l, f := startTier(t, cfg, nil)
			r := Request{Prompt: prompt(tc.prompt, 1), MaxTokens: 4, PromptTopN: -1}
			require.Zero(t, runCached(t, l, r))
			require.Zero(t, runCached(t, l, ask(2)))
			require.Zero(t, runCached(t, l, ask(3)))
			require.Zero(t, runCached(t, l, r))
			require.NoError(t, f.broken)
		})
	}
}

func TestRefusedCopiesAreComputed(t *testing.T) {
	// The engine has no memory for the first copies out. Their prompt is computed again, the tier
	// stays as small as it is, and every answer is the same.
	for name, cfg := range tierModels() {
		t.Run(name, func(t *testing.T) {
			refused := 0
			l, f := startTier(t, cfg, func(f *fakeRunner) {
				f.refuse = func(s *engine.Step) error {
					if slices.ContainsFunc(s.PreOps, func(op engine.PreOp) bool { return op.Kind == engine.BlockOut }) && refused < 2 {
						refused++
						return fmt.Errorf("host memory: %w", engine.ErrOutOfMemory)
					}
					return nil
				}
			})
			for i := range int32(12) {
				runCached(t, l, ask(i%3))
			}
			stop(l)
			require.NoError(t, f.broken)
			require.Positive(t, refused)
			require.EqualValues(t, refused, l.Stats().RefusedSteps)
			require.Less(t, l.Stats().TotalTierBlocks, cfg.Tier.Blocks)
			require.Less(t, l.Stats().TotalTierBytes, uint64(cfg.Tier.Blocks))
			require.LessOrEqual(t, l.Stats().TierBytes, l.Stats().TotalTierBytes)
		})
	}
}

func TestStepsTooLargeForTheDeviceKeepTheTier(t *testing.T) {
	// The device has no memory for long steps, with or without copies out. They are split, and the
	// tier keeps its size.
	for name, cfg := range tierModels() {
		t.Run(name, func(t *testing.T) {
			refused := 0
			l, f := startTier(t, cfg, func(f *fakeRunner) {
				f.refuse = func(s *engine.Step) error {
					tokens := 0
					for i := range s.Segments {
						tokens += len(s.Segments[i].Tokens)
					}
					if tokens > 16 {
						if slices.ContainsFunc(s.PreOps, func(op engine.PreOp) bool { return op.Kind == engine.BlockOut }) {
							refused++
						}
						return fmt.Errorf("device memory: %w", engine.ErrOutOfMemory)
					}
					return nil
				}
			})
			for i := range int32(6) {
				runCached(t, l, ask(i%3))
			}
			stop(l)
			require.NoError(t, f.broken)
			require.Positive(t, refused)
			require.Equal(t, cfg.Tier.Blocks, l.Stats().TotalTierBlocks)
		})
	}
}

// canceller cancels a stream when its sequence gets its slot, which is before the step with its
// copies.
type canceller struct {
	recorder
	stream *Stream
}

func (c *canceller) Admitted(time.Duration, int, int) {
	if s := c.stream; s != nil {
		s.Cancel()
	}
}

func TestCancelledRecallsKeepTheirCopies(t *testing.T) {
	// The blocks are findable on the device from the moment that their copies are planned, although
	// the only sequence that wanted them is gone and the loop is idle.
	for name, cfg := range tierModels() {
		t.Run(name, func(t *testing.T) {
			hook := &canceller{recorder: recorder{preempted: map[Preemption]int{}}}
			cfg.Observer = hook
			l, f := startTier(t, cfg, nil)
			for seed := range int32(3) {
				require.Zero(t, runCached(t, l, ask(seed)))
			}
			s := arrive(l, func(s *sequence) { hook.stream = s.stream }, ask(0))[0]
			_, _, _, err := drain(t, s)
			require.ErrorIs(t, err, ErrCancelled)
			require.Eventually(t, l.Idle, time.Minute, time.Millisecond)
			require.EqualValues(t, 1, l.Stats().TierRecalls)
			hook.stream = nil
			require.Equal(t, 192, runCached(t, l, ask(0)))
			stop(l)
			require.NoError(t, f.broken)
			require.EqualValues(t, 1, l.Stats().TierRecalls, "the second one found them on the device")
		})
	}
}

func TestKeysSayThatAPrefixIsOnTheHost(t *testing.T) {
	for name, cfg := range tierModels() {
		t.Run(name, func(t *testing.T) {
			l, _ := startTier(t, cfg, nil)
			r := ask(0)
			r.Keys = []PrefixKey{{Key: 7, Tokens: 192}}
			require.Zero(t, runCached(t, l, r))
			require.Zero(t, runCached(t, l, ask(1)))
			require.Zero(t, runCached(t, l, ask(2)))
			hosted := func() (added, hosted []uint64) {
				_, _, added, _, hosted = l.Prefixes(0)
				return added, hosted
			}
			require.Eventually(t, func() bool { _, h := hosted(); return len(h) == 1 }, time.Minute, time.Millisecond)
			require.Equal(t, 192, runCached(t, l, ask(0)))
			require.Eventually(t, func() bool { a, h := hosted(); return len(a) == 1 && len(h) == 0 }, time.Minute, time.Millisecond)
		})
	}
}

func TestRecallsAndPreemptionsMeet(t *testing.T) {
	// Prompts that share beginnings crowd a small cache with a small tier and swaps, and some have
	// several continuations.
	for name, cfg := range tierModels() {
		for _, tier := range []int{6, 20, 200, 201} {
			t.Run(fmt.Sprintf("%s, tier of %d", name, tier), func(t *testing.T) {
				cfg := cfg
				if tier == 201 {
					cfg.moves = 12 // recalls take several steps
				}
				cfg.Tier = Tier{Blocks: tier}
				cfg.Runner.KVBlocks, cfg.Runner.MaxSequences, cfg.Runner.HostBlocks = 30, 6, tier+40
				if cfg.Window > 0 {
					cfg.Tier.WindowBlocks, cfg.Runner.WindowBlocks, cfg.Runner.HostWindowBlocks = tier, 24, tier+40
				}
				if cfg.States {
					cfg.Tier.States, cfg.Runner.SavedStates, cfg.Runner.HostStates = tier/2, 4, tier/2+4
				}
				cfg.LeastRecall = 1
				l, f := startTier(t, cfg, slow)
				rng, sequences := rand.New(rand.NewPCG(4, uint64(tier))), 0
				for range 12 {
					var streams [][]*Stream
					var requests []Request
					for range 8 {
						p := append(prompt(20+rng.IntN(180), int32(rng.IntN(3))), prompt(1+rng.IntN(40), int32(50+rng.IntN(4)))...)
						r := Request{Prompt: p, MaxTokens: 1 + rng.IntN(60), PromptTopN: -1}
						streams, requests = append(streams, several(t, l, r, 1+rng.IntN(3))), append(requests, r)
					}
					for i := range streams {
						sequences += len(streams[i])
						for k, s := range streams[i] {
							tokens, _, _, err := drain(t, s)
							require.NoError(t, err)
							require.Equal(t, wantOf(requests[i], k), tokens)
						}
					}
				}
				require.Eventually(t, l.Idle, time.Minute, time.Millisecond)
				stop(l)
				require.NoError(t, f.broken)
				stats := l.Stats()
				require.Positive(t, stats.TierRecalls)
				require.Positive(t, stats.Preempted)
				// A slot gets a generation with each sequence that starts there, and with each part of a
				// recall but the first.
				parts := -sequences - int(stats.Preempted)
				for _, n := range l.generations {
					parts += int(n)
				}
				require.Equal(t, cfg.moves > 0, parts > 0, "%d parts after first ones", parts)
				require.Equal(t, cfg.Runner.KVBlocks, stats.FreeBlocks)
				require.Equal(t, 40, stats.FreeHostBlocks)
				require.Equal(t, cfg.Runner.SavedStates, stats.FreeStates)
			})
		}
	}
}
