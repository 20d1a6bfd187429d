package batch

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
)

// fakeWords is a vocabulary of the fake runner's ids: id n is the text of n as decimals and a space, but
// 0 to 9, which are no text.
var fakeWords = sync.OnceValue(func() *guide.Vocabulary {
	return guide.NewVocabulary(fakeVocab, func(id int32) []byte {
		if id < 10 {
			return nil
		}
		return fmt.Appendf(nil, "%d ", id)
	}, 1<<20)
})

// guided is a request whose answer obeys an expression, with end token 0.
func guided(t *testing.T, r Request, expression string) Request {
	t.Helper()
	g, err := guide.Compile(guide.Source{Kind: guide.Regex, Text: expression}, fakeWords())
	require.NoError(t, err)
	r.PromptTopN, r.StopIDs = -1, []int32{0}
	r.Continuations = []Continuation{{Guide: g.Start(r.StopIDs)}}
	return r
}

// wantGuided returns the tokens of a guided sequence by the fake runner's rule and its own masks.
func wantGuided(t *testing.T, r Request, index int) []int32 {
	t.Helper()
	c := r.Continuations[index]
	history, out := append(append([]int32(nil), r.Prompt...), c.Resumed...), []int32(nil)
	p, state := r.Params, c.Guide
	p.OutputIndex = c.OutputIndex
	for len(c.Resumed)+len(out) < r.MaxTokens {
		mask := make([]uint32, state.Words())
		require.NoError(t, state.Mask(mask))
		id := maskedToken(fakeToken(p, history), mask)
		history, out = append(history, id), append(out, id)
		if id == 0 {
			break
		}
		var err error
		state, err = state.Advance(id)
		require.NoError(t, err)
	}
	return out
}

const oddNumbers = `([0-9]{1,2}[13579] ){3,20}`

// Sequences under a grammar and others share steps, slots that are too few and blocks that run out.
// Each gets the tokens that it gets alone, and two steps stay in flight.
func TestGuidedAndFreeSequencesShareSteps(t *testing.T) {
	for name, limits := range map[string]*maskLimits{"usual": nil, "every row is held": {}} {
		t.Run(name, func(t *testing.T) { testGuidedAndFree(t, limits) })
	}
}

func testGuidedAndFree(t *testing.T, limits *maskLimits) {
	t.Helper()
	gate := make(chan struct{}) // opens when all wait, so that blocks run out
	l, f := start(t, Config{Chunk: 7, masks: limits, Runner: engine.RunnerConfig{KVBlocks: 9, MaxSequences: 4}}, func(f *fakeRunner) { f.gate = gate })
	var wg, waiting sync.WaitGroup
	waiting.Add(24)
	ended := make([]bool, 24)
	for i := range int32(24) {
		r := Request{Prompt: prompt(5+int(i), i), MaxTokens: 40, Params: engine.SlotParams{Seed: uint64(i)}}
		if i%3 == 0 {
			r.PromptTopN = -1
			wg.Go(func() {
				s, err := submit(l, r)
				waiting.Done()
				require.NoError(t, err)
				tokens, _, _, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, want(r), tokens)
			})
			continue
		}
		r = guided(t, r, oddNumbers)
		expected := wantGuided(t, r, 0)
		wg.Go(func() {
			streams, err := l.Submit(r)
			waiting.Done()
			require.NoError(t, err)
			tokens, _, done, err := drain(t, streams[0])
			require.NoError(t, err)
			require.Equal(t, expected, tokens)
			ended[i] = done.Reason == Stop
		})
	}
	waiting.Wait()
	close(gate)
	wg.Wait()
	require.Contains(t, ended, true)
	require.Equal(t, depth, f.deepest)
	require.Positive(t, l.Stats().Preempted)
	if limits != nil {
		require.Positive(t, f.again)
	} else {
		require.Zero(t, f.again)
	}
}

// Continuations share the first state, and one that is resumed goes on as it would have.
func TestGuidedContinuationsAndResume(t *testing.T) {
	for name, limits := range map[string]*maskLimits{"usual": nil, "every row is held": {}} {
		t.Run(name, func(t *testing.T) { testGuidedContinuations(t, limits) })
	}
}

func testGuidedContinuations(t *testing.T, limits *maskLimits) {
	t.Helper()
	l, _ := start(t, Config{masks: limits}, nil)
	r := guided(t, Request{Prompt: prompt(30, 3), MaxTokens: 30, Params: engine.SlotParams{Seed: 5}}, oddNumbers)
	r.Continuations = append(r.Continuations, r.Continuations[0])
	r.Continuations[1].OutputIndex = 1
	streams, err := l.Submit(r)
	require.NoError(t, err)
	var whole []int32
	for i, s := range streams {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, wantGuided(t, r, i), tokens)
		whole = tokens
	}
	for k := 1; k < len(whole); k++ {
		again := r
		again.Continuations = []Continuation{{OutputIndex: 1, Resumed: whole[:k], Guide: r.Continuations[1].Guide}}
		for _, id := range whole[:k] {
			again.Continuations[0].Guide, err = again.Continuations[0].Guide.Advance(id)
			require.NoError(t, err)
		}
		streams, err := l.Submit(again)
		require.NoError(t, err)
		tokens, _, _, err := drain(t, streams[0])
		require.NoError(t, err)
		require.Equal(t, whole[k:], tokens)
	}
}

// A grammar that the vocabulary cannot spell ends its own sequence, by name.
func TestStuckGrammarEndsItsSequenceAlone(t *testing.T) {
	l, _ := start(t, Config{}, nil)
	stuck := guided(t, Request{Prompt: prompt(30, 3), MaxTokens: 30}, `123 x`)
	other := Request{Prompt: prompt(9, 4), MaxTokens: 30, PromptTopN: -1}
	streams, err := l.Submit(stuck)
	require.NoError(t, err)
	s, err := submit(l, other)
	require.NoError(t, err)
	_, _, _, err = drain(t, streams[0])
	require.ErrorIs(t, err, ErrGuide)
	require.ErrorIs(t, err, guide.ErrStuck)
	tokens, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(other), tokens)
}

// plainRunner has no masks that follow a step.
type plainRunner struct{ engine.Runner }

func TestLoopWithoutLateMasksRefusesGrammars(t *testing.T) {
	l := New(Config{Context: 64, Runner: engine.RunnerConfig{KVBlocks: 4, BlockSize: 16, MaxSequences: 1}},
		plainRunner{newFake(engine.RunnerConfig{})}, hclog.NewNullLogger())
	_, err := l.Submit(guided(t, Request{Prompt: prompt(3, 1), MaxTokens: 3}, `a`))
	require.ErrorIs(t, err, engine.ErrUnsupported)
}

// A mask that needs more than the patience of a step delays its own sequence: others go on, two steps
// deep, and it gets the tokens that it gets alone.
func TestExpensiveMaskHoldsItsSequenceAlone(t *testing.T) {
	l, f := start(t, Config{masks: &maskLimits{inlineSteps: 1 << 10}}, nil)
	const expression = `([0-9]{1,3} ){1,90}[0-9 ]{1,900}`
	expensive := guided(t, Request{Prompt: prompt(9, 3), MaxTokens: 12}, expression)
	expected := wantGuided(t, expensive, 0)
	expensive = guided(t, expensive, expression) // a grammar without masks
	other := Request{Prompt: prompt(9, 4), MaxTokens: 60, PromptTopN: -1}
	streams, err := l.Submit(expensive)
	require.NoError(t, err)
	s, err := submit(l, other)
	require.NoError(t, err)
	tokens, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(other), tokens)
	tokens, _, _, err = drain(t, streams[0])
	require.NoError(t, err)
	require.Equal(t, expected, tokens)
	require.Positive(t, f.again)
	require.Equal(t, depth, f.deepest)
}

// A sequence that is cancelled, or whose loop ends, leaves its mask undone.
func TestMasksOfEndedSequencesAreDropped(t *testing.T) {
	var l *Loop
	t.Cleanup(func() { // after the loop has ended, because it may still add masks before
		l.pool.running.Wait()
		require.Zero(t, l.pool.mu.workers)
	})
	l, _ = start(t, Config{masks: &maskLimits{}}, nil)
	for i := range int32(8) {
		streams, err := l.Submit(guided(t, Request{Prompt: prompt(9, i), MaxTokens: 400}, `([0-9]{1,3} ){9,300}`))
		require.NoError(t, err)
		if i%2 == 0 {
			streams[0].Cancel()
		}
	}
}

func TestMasksBeforeAStepShareABudget(t *testing.T) {
	// Of a model with states, a sequence is planned with its mask ready. The loop makes one of these
	// masks itself in each round, and the pool the others.
	r := guided(t, Request{Prompt: prompt(9, 4), MaxTokens: 8}, `([1-9]{2} ){12}`)
	state := r.Continuations[0].Guide
	steps := 1 << 30
	require.True(t, (&maskJob{walk: state.Walk(nil, make([]uint32, state.Words()))}).try(&steps))
	cost := 1<<30 - steps
	runner := engine.RunnerConfig{MaxSequences: 8, MaxSampleRows: 8, MaxBatchedTokens: 256, BlockSize: 16, KVBlocks: 64}
	cfg := Config{Context: 512, States: true, masks: &maskLimits{inlineSteps: cost + cost/2}, Runner: runner}
	l := New(cfg, newFake(runner), hclog.NewNullLogger())
	for i := range int32(8) {
		_, err := l.Submit(guided(t, Request{Prompt: prompt(9, i), MaxTokens: 8}, `([1-9]{2} ){12}`))
		require.NoError(t, err)
	}
	l.collect()
	l.admit(time.Now())
	require.True(t, l.choose(time.Now()))
	inline := 0
	for _, s := range l.running {
		if j := s.masking.job; j.done.Load() && !j.pooled {
			inline++
		}
	}
	require.Len(t, l.running, 8)
	require.Equal(t, 1, inline)
	l.pool.close()
}
