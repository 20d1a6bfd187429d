package batch

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestChunkSizerFollowsTheClock(t *testing.T) {
	const target = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		before, tokens int
		took           time.Duration
		most, want     int
	}{
		"a step of the wanted length keeps it":             {100, 100, target, 4096, 100},
		"one that is somewhat longer shortens it so much":  {100, 100, 80 * time.Millisecond, 4096, 62},
		"one that is somewhat shorter lengthens it":        {100, 100, 40 * time.Millisecond, 4096, 125},
		"it doubles at most":                               {100, 100, time.Millisecond, 4096, 200},
		"it halves at most":                                {100, 100, time.Hour, 4096, 50},
		"it is never below the least":                      {40, 40, time.Hour, 4096, MinChunk},
		"it is never above what has room":                  {100, 100, time.Millisecond, 150, 150},
		"no time at all is no division by zero":            {100, 100, 0, 4096, 200},
		"less than might have been says nothing, if long":  {100, 99, time.Hour, 4096, 100},
		"less than might have been says nothing, if short": {100, 1, time.Nanosecond, 4096, 100},
		"all that had room says something":                 {100, 60, time.Hour, 60, 50},
		"room for less than the least leaves that":         {MinChunk, 4, time.Hour, 4, MinChunk},
		"numbers as large as they come stay in range":      {math.MaxInt32, math.MaxInt32, time.Microsecond, math.MaxInt32, math.MaxInt32},
	} {
		t.Run(name, func(t *testing.T) {
			p := chunkSizer{target: target, tokens: tc.before}
			p.learn(tc.tokens, tc.took, tc.most)
			require.Equal(t, chunkSizer{target: target, tokens: tc.want}, p)
		})
	}
}

func TestPartialChunksHaveWholeGrains(t *testing.T) {
	// A step that leaves prefill tokens for later has a whole number of grains.
	for name, tc := range map[string]struct{ grain, tokens, waiting, most, want int }{
		"what waits fits":                       {1024, 1200, 1100, 4096, 1100},
		"all that fits":                         {1024, 1200, 1200, 4096, 1200},
		"one more than fits":                    {1024, 1200, 1201, 4096, 1024},
		"two grains":                            {1024, 3000, 9000, 4096, 2048},
		"room for a part of a grain":            {1024, 3000, 9000, 1000, 1000},
		"room for a grain and a part":           {1024, 3000, 9000, 2000, 1024},
		"less than a grain fits":                {1024, 1023, 9000, 4096, 1023},
		"a device that is as fast with any":     {0, 1200, 9000, 4096, 1200},
		"a grain of one":                        {1, 1200, 9000, 4096, 1200},
		"nothing waits":                         {1024, 1200, 0, 4096, 0},
		"no room, as all of it is for decoding": {1024, 1200, 9000, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := chunkSizer{target: time.Second, grain: tc.grain, tokens: tc.tokens}
			require.Equal(t, tc.want, p.chunk(tc.waiting, tc.most))
		})
	}
}

func TestChunkSizerLearnsFromWholeGrains(t *testing.T) {
	const target = 40 * time.Millisecond
	p := chunkSizer{target: target, grain: 1024, tokens: 1241}
	p.learn(1024, 50*time.Millisecond, 4096)
	require.Equal(t, 819, p.tokens, "a step that was cut to a grain says how long one takes")
	p = chunkSizer{target: target, grain: 1024, tokens: 1241}
	p.learn(1023, 50*time.Millisecond, 4096)
	require.Equal(t, 1241, p.tokens, "one with less was not cut")
}

func TestChunkSizerConverges(t *testing.T) {
	// Whatever a step costs in addition to its prompts, the size converges to the target or to its
	// bounds.
	const target, most = 50 * time.Millisecond, 4096
	for _, base := range []time.Duration{0, 5 * time.Millisecond, 25 * time.Millisecond, 45 * time.Millisecond, 60 * time.Millisecond} {
		for _, each := range []time.Duration{time.Microsecond, 25 * time.Microsecond, 400 * time.Microsecond, 20 * time.Millisecond} {
			p := newChunkSizer(target, 0)
			for range 200 {
				p.learn(p.tokens, base+each*time.Duration(p.tokens), most)
			}
			want := max(min(int((target-base)/each), most), MinChunk)
			require.InDelta(t, want, p.tokens, 1+float64(want)/10, "%v and %v a token", base, each)
		}
	}
}

// watched is a record of a loop's steps.
type watched struct {
	sync.Mutex
	steps []stepOf
}

type stepOf struct {
	prefill  int
	decoding bool
}

// timed makes a runner's steps take base plus each for every token, and records them.
func timed(w *watched, base, each time.Duration) func(*fakeRunner) {
	return func(f *fakeRunner) {
		f.lasts = func(s *engine.Step) time.Duration {
			of, tokens := stepOf{}, 0
			for i := range s.Segments {
				tokens += len(s.Segments[i].Tokens)
				if s.Segments[i].Class == engine.Decode {
					of.decoding = true
				} else {
					of.prefill += len(s.Segments[i].Tokens)
				}
			}
			w.Lock()
			w.steps = append(w.steps, of)
			w.Unlock()
			return base + each*time.Duration(tokens)
		}
	}
}

// largest returns the most prefill tokens of the recorded steps with and without decoding
// sequences.
func (w *watched) largest() (shared, alone int) {
	w.Lock()
	defer w.Unlock()
	for _, s := range w.steps {
		if s.decoding {
			shared = max(shared, s.prefill)
		} else {
			alone = max(alone, s.prefill)
		}
	}
	return shared, alone
}

func TestPrefillStepsShrinkWhileOthersDecode(t *testing.T) {
	// A prompt that joins decoding sequences is computed in shorter steps.
	for name, tc := range map[string]struct {
		cfg           Config
		shared, alone int // prefill tokens of the longest steps
	}{
		// A step lasts 6 ms and 100 us a token, so that 2440 of them fit 250 ms and 440 fit 50 ms.
		"by the clock":          {Config{}, 440, 2440},
		"by another target":     {Config{SharedTarget: 26 * time.Millisecond}, 200, 2440},
		"by a fixed chunk":      {Config{Chunk: 300}, 300, 300},
		"never below the least": {Config{SharedTarget: time.Millisecond, StepTarget: time.Millisecond}, MinChunk, MinChunk},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watched{}
				cfg := tc.cfg
				cfg.Context, cfg.Runner.KVBlocks, cfg.Runner.MaxBatchedTokens = 20_000, 2048, 4096
				l, _ := start(t, cfg, timed(w, 6*time.Millisecond, 100*time.Microsecond))
				long := Request{Prompt: prompt(16_000, 1), MaxTokens: 1, PromptTopN: -1, Bypass: true}
				submit := func(r Request) *Stream {
					s, err := submit(l, r)
					require.NoError(t, err)
					return s
				}
				alone := func() int {
					w.steps = nil
					_, _, _, err := drain(t, submit(long))
					require.NoError(t, err)
					shared, alone := w.largest()
					require.Zero(t, shared)
					return alone
				}
				require.InDelta(t, tc.alone, alone(), float64(tc.alone)/20, "nobody waits for it")

				w.steps = nil
				talk := Request{Prompt: prompt(40, 2), MaxTokens: 400, PromptTopN: -1}
				talking, joining := submit(talk), make(chan error, 1)
				go func() {
					time.Sleep(50 * time.Millisecond)
					_, _, _, err := drain(t, submit(long))
					joining <- err
				}()
				tokens, _, _, err := drain(t, talking)
				require.NoError(t, err)
				require.Equal(t, want(talk), tokens, "however the prompt beside it is cut")
				require.NoError(t, <-joining)
				shared, _ := w.largest()
				require.InDelta(t, tc.shared, shared, float64(tc.shared)/20)

				require.InDelta(t, tc.alone, alone(), float64(tc.alone)/20, "what was learned of the other steps says nothing of these")
			})
		})
	}
}
