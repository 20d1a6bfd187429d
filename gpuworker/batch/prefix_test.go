package batch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// run submits a request and returns its tokens and its stream after its end.
func run(t *testing.T, l *Loop, r Request) ([]int32, *Stream) {
	t.Helper()
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(r), tokens)
	return tokens, s
}

func TestAPromptBeginsWithWhatIsCachedOfIt(t *testing.T) {
	for name, tc := range map[string]struct {
		prompt int
		want   int // tokens taken from the cache the second time
	}{
		"no whole block":                       {16, 0},
		"one block, one token is computed":     {17, 16},
		"the last whole block is needed":       {32, 16},
		"all but the last token":               {33, 32},
		"part of a block is computed again":    {47, 32},
		"a long prompt, of whole blocks":       {160, 144},
		"a long prompt, a token more":          {161, 160},
		"one token: nothing is ever there":     {1, 0},
		"one token less than the first border": {15, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := start(t, Config{}, nil)
			r := Request{Prompt: prompt(tc.prompt, 1), MaxTokens: 5, PromptTopN: -1}
			_, s := run(t, l, r)
			require.Zero(t, s.Cached())
			_, before := f.computed()
			_, s = run(t, l, r)
			require.Equal(t, tc.want, s.Cached())
			_, after := f.computed()
			require.Equal(t, tc.prompt-tc.want+4, after-before, "tokens computed")
			hits := uint64(0)
			if tc.want > 0 {
				hits = 1
			}
			require.Equal(t, hits, l.Stats().PrefixHits)
			require.EqualValues(t, tc.want, l.Stats().CachedTokens)
		})
	}
}

func TestPrefixCacheUse(t *testing.T) {
	base := Request{Prompt: prompt(50, 1), MaxTokens: 3, PromptTopN: -1}
	for name, tc := range map[string]struct {
		first, second func(*Request)
		want          int
	}{
		"the same salt":                {func(r *Request) { r.Salt = "a" }, func(r *Request) { r.Salt = "a" }, 48},
		"another salt":                 {func(r *Request) { r.Salt = "a" }, func(r *Request) { r.Salt = "b" }, 0},
		"a salt against none":          {func(*Request) {}, func(r *Request) { r.Salt = "b" }, 0},
		"a bypass takes none":          {func(*Request) {}, func(r *Request) { r.Bypass = true }, 0},
		"a bypass leaves none":         {func(r *Request) { r.Bypass = true }, func(*Request) {}, 0},
		"a scored prompt takes none":   {func(*Request) {}, func(r *Request) { r.PromptTopN = 0 }, 0},
		"a scored prompt leaves some":  {func(r *Request) { r.PromptTopN = 0 }, func(*Request) {}, 48},
		"other parameters":             {func(*Request) {}, func(r *Request) { r.Params.Seed = 9 }, 48},
		"another class for the prompt": {func(*Request) {}, func(r *Request) { r.Class = engine.Decode }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := base, base
			tc.first(&first)
			tc.second(&second)
			second.Params.MinTokens = int32(second.Class) // lets the fake distinguish them
			l, _ := start(t, Config{}, func(f *fakeRunner) {
				f.prompts = func(p engine.SlotParams) engine.KernelClass { return engine.KernelClass(p.MinTokens) }
			})
			run(t, l, first)
			_, s := run(t, l, second)
			require.Equal(t, tc.want, s.Cached())
		})
	}
}

// The second prompt of a chat contains the first answer. The decode class computed that one, and
// only OneClass makes its bits the same.
func TestAnAnswerIsReusedWhereTheClassesAreOne(t *testing.T) {
	for name, tc := range map[string]struct {
		oneClass bool
		want     int
	}{
		"two classes: only the prompt": {false, 32},
		"one class: the answer too":    {true, 64},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := start(t, Config{OneClass: tc.oneClass}, func(f *fakeRunner) { f.oneClass = tc.oneClass })
			first := Request{Prompt: prompt(40, 1), MaxTokens: 30, PromptTopN: -1}
			answer, _ := run(t, l, first)
			second := first
			second.Prompt = append(append([]int32(nil), first.Prompt...), answer...)
			second.Prompt = append(second.Prompt, 1, 2, 3)
			_, s := run(t, l, second)
			require.Equal(t, tc.want, s.Cached())
		})
	}
}

func TestAPrefixThatIsBeingComputedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Chunk: 32, Runner: engine.RunnerConfig{MaxSequences: 8}}, func(f *fakeRunner) {
			f.lasts = func(*engine.Step) time.Duration { return time.Millisecond }
		})
		shared := prompt(200, 1)
		var streams []*Stream
		var requests []Request
		for i := range int32(8) {
			p := append(append([]int32(nil), shared...), 900+i, 901, 902)
			requests = append(requests, Request{Prompt: p, MaxTokens: 4, PromptTopN: -1, Params: engine.SlotParams{Seed: uint64(i)}})
			s, err := submit(l, requests[i])
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for i, s := range streams {
			tokens, _, _, err := drain(t, s)
			require.NoError(t, err)
			require.Equal(t, want(requests[i]), tokens)
			cached := 192
			if i == 0 {
				cached = 0
			}
			require.Equal(t, cached, s.Cached())
		}
		_, tokens := f.computed()
		require.Equal(t, 203+7*11+8*3, tokens, "the shared blocks are computed once")
	})
}

func TestPrefixWaitEndsWithItsProducer(t *testing.T) {
	// A sequence that waits for a prefix continues when the producer leaves.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Chunk: 16}, func(f *fakeRunner) { f.gate = make(chan struct{}, 1000) })
		r := Request{Prompt: prompt(200, 1), MaxTokens: 4, PromptTopN: -1}
		owner, err := submit(l, r)
		require.NoError(t, err)
		waiter, err := submit(l, r)
		require.NoError(t, err)
		for range 4 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		require.Equal(t, 1, l.Stats().Waiting)
		owner.Cancel()
		for range 200 {
			f.gate <- struct{}{}
		}
		tokens, _, _, err := drain(t, waiter)
		require.NoError(t, err)
		require.Equal(t, want(r), tokens)
		require.GreaterOrEqual(t, waiter.Cached(), 64, "what was computed before is not lost")
		require.Less(t, waiter.Cached(), 192)
	})
}

func TestPrefixWaitDoesNotBlockTheQueue(t *testing.T) {
	// Others are admitted while a sequence waits for a prefix.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Chunk: 16}, func(f *fakeRunner) { f.gate = make(chan struct{}, 1000) })
		r := Request{Prompt: prompt(200, 1), MaxTokens: 4, PromptTopN: -1}
		for range 2 {
			_, err := submit(l, r)
			require.NoError(t, err)
		}
		synctest.Wait()
		_, err := submit(l, Request{Prompt: prompt(20, 5), MaxTokens: 4, PromptTopN: -1})
		require.NoError(t, err)
		f.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, 2, l.Stats().Running)
		require.Equal(t, 1, l.Stats().Waiting)
		close(f.gate)
	})
}

func TestKeysAreReportedWhileCached(t *testing.T) {
	l, _ := start(t, Config{Context: 400, Runner: engine.RunnerConfig{KVBlocks: 24}}, nil)
	r := Request{Prompt: prompt(100, 1), MaxTokens: 2, PromptTopN: -1, Keys: []PrefixKey{{11, 32}, {12, 64}, {13, 100}}}
	run(t, l, r)
	require.Eventually(t, func() bool {
		_, _, added, _, _ := l.Prefixes(0)
		return len(added) == 2
	}, time.Minute, time.Millisecond)
	at, reset, added, removed, hosted := l.Prefixes(0)
	require.False(t, reset)
	require.Equal(t, []uint64{11, 12}, added, "the last block of the third is never full")
	require.Empty(t, removed)
	require.Empty(t, hosted)

	bypass := r
	bypass.Bypass, bypass.Keys = true, []PrefixKey{{21, 32}}
	run(t, l, bypass)
	run(t, l, Request{Prompt: prompt(380, 2), MaxTokens: 2, PromptTopN: -1})
	require.Eventually(t, func() bool {
		_, _, _, removed, _ := l.Prefixes(at)
		return len(removed) == 2
	}, time.Minute, time.Millisecond)
	_, reset, added, removed, _ = l.Prefixes(at)
	require.False(t, reset)
	require.Empty(t, added)
	require.Equal(t, []uint64{11, 12}, removed, "their blocks were needed")
}

func TestPromptWithNaNLogitsIsNotCached(t *testing.T) {
	l, _ := start(t, Config{Chunk: 64}, func(f *fakeRunner) { f.nanSlot = 0 })
	r := Request{Prompt: prompt(50, 1), MaxTokens: 3, PromptTopN: -1}
	s, err := submit(l, r)
	require.NoError(t, err)
	_, _, _, err = drain(t, s)
	require.ErrorIs(t, err, ErrBadLogits)
	require.Eventually(t, l.Idle, time.Minute, time.Millisecond)
	require.Zero(t, l.Stats().CachedBlocks)
}

func TestNaNLogitsEvictThePrefix(t *testing.T) {
	// Cached blocks of a sequence are forgotten when its logits become NaN.
	l, f := start(t, Config{Chunk: 16}, func(f *fakeRunner) { f.nanSlot = 0 })
	r := Request{Prompt: prompt(50, 1), MaxTokens: 3, PromptTopN: -1}
	s, err := submit(l, r)
	require.NoError(t, err)
	_, _, _, err = drain(t, s)
	require.ErrorIs(t, err, ErrBadLogits)
	f.mu.Lock()
	f.nanSlot = -1
	f.mu.Unlock()
	for _, cached := range []int{0, 48} {
		tokens, s := run(t, l, r)
		require.Equal(t, want(r), tokens)
		require.Equal(t, cached, s.Cached())
	}
	require.Eventually(t, func() bool { return l.Idle() && l.Stats().FreeBlocks == 64 }, time.Minute, time.Millisecond)
}
