package batch

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// alone runs one request on a loop of its own and returns its tokens, its end and the number of steps.
func alone(t *testing.T, cfg Config, r Request) (tokens []int32, done *Done, steps int) {
	t.Helper()
	l, f := start(t, cfg, nil)
	streams, err := l.Submit(r)
	require.NoError(t, err)
	tokens, _, done, err = drain(t, streams[0])
	require.NoError(t, err)
	stop(l)
	steps, _ = f.computed()
	require.NoError(t, f.broken)
	return tokens, done, steps
}

// An answer of nothing but forced tokens takes as many steps as its chains, and ends without one for its end token.
// Tokens are the same when each is sampled.
func TestForcedTokensShareSteps(t *testing.T) {
	text := strings.Repeat("101 202 303 404 ", 6) // 24 tokens, less than a chain may have
	for name, tc := range map[string]struct {
		expression            string
		tokens, steps, singly int
	}{
		"all forced":            {text, 25, 1, 25},
		"longer than a chain":   {text + text, 49, 2, 49},
		"between free tokens":   {`[1-9]{2} ` + text + `[1-9]{2} ` + text + `[1-9]{2} `, 52, 5, 52},
		"cut off inside":        {text + text + text, 60, 2, 60},
		"a chain of one token":  {`([1-9]{2} 100 ){5}`, 11, 10, 11},
		"two choices of chains": {`([1-9]{2} )(11 22 33 44 55 |66 77 88 99 111 )([1-9]{2} )`, 8, 5, 8},
	} {
		t.Run(name, func(t *testing.T) {
			r := guided(t, Request{Prompt: prompt(9, 4), MaxTokens: 60, Params: engine.SlotParams{Seed: 7}}, tc.expression)
			expected := wantGuided(t, r, 0)
			require.Len(t, expected, tc.tokens)
			tokens, done, steps := alone(t, Config{}, r)
			require.Equal(t, expected, tokens)
			again, end, singly := alone(t, Config{sampleForced: true}, r)
			require.Equal(t, expected, again)
			require.Equal(t, end, done)
			require.InDelta(t, tc.steps, steps, 1, "one step more may be in flight at the end")
			require.InDelta(t, tc.singly, singly, 1)
		})
	}
}

// A caller that reads logprobs gets those of every token, and every token has a row of its own.
func TestLogprobsAreNotForced(t *testing.T) {
	for _, logprobs := range []bool{false, true} {
		t.Run(fmt.Sprint(logprobs), func(t *testing.T) {
			l, _ := start(t, Config{}, nil)
			r := guided(t, Request{Prompt: prompt(9, 4), MaxTokens: 60, Logprobs: logprobs}, `(101 202 303 ){5}`)
			streams, err := l.Submit(r)
			require.NoError(t, err)
			ranked := 0
			for done := false; !done; {
				events, err := streams[0].Recv(t.Context(), nil)
				require.NoError(t, err)
				for _, e := range events {
					if done = e.Done != nil; e.Token != nil && e.Token.Rank > 0 {
						ranked++
					}
				}
			}
			require.Equal(t, logprobs, ranked == 16, "%d of 16 tokens have a rank", ranked)
			require.Equal(t, logprobs, l.Stats().ForcedTokens == 0)
		})
	}
}

// Parameters that leave the only token of a mask no chance are the engine's to report.
func TestForbiddenTokensAreNotForced(t *testing.T) {
	s := &sequence{promptLength: 2, tokens: []int32{7, 7, 5}}
	for name, tc := range map[string]struct {
		params engine.SlotParams
		want   bool
	}{
		"no parameters":           {engine.SlotParams{}, true},
		"allowed":                 {engine.SlotParams{Allowed: []int32{3, 9}}, true},
		"not allowed":             {engine.SlotParams{Allowed: []int32{3, 4}}, false},
		"nothing is allowed":      {engine.SlotParams{Allowed: []int32{}}, false},
		"suppressed":              {engine.SlotParams{Suppressed: []int32{9}, MinTokens: 2}, false},
		"not suppressed any more": {engine.SlotParams{Suppressed: []int32{9}, MinTokens: 1}, true},
		"biased":                  {engine.SlotParams{BiasIDs: []int32{1, 9}, BiasValues: []float32{0, -100}}, true},
		"biased away":             {engine.SlotParams{BiasIDs: []int32{1, 9}, BiasValues: []float32{0, float32(math.Inf(-1))}}, false},
		"candidates wanted":       {engine.SlotParams{TopN: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s.request.Params = tc.params
			require.Equal(t, tc.want, s.mayForce(9))
		})
	}
}

// The forced tokens of many sequences share a step's room with the next token of each of the others.
func TestForcedTokensLeaveRoomForOthers(t *testing.T) {
	l, f := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 6, MaxBatchedTokens: 8}}, nil)
	var streams []*Stream
	var requests []Request
	for i := range int32(6) {
		r := guided(t, Request{Prompt: prompt(9, i), MaxTokens: 60, Params: engine.SlotParams{Seed: uint64(i)}}, `([1-9]{2} (101 202 303 404 ){5}){3}`)
		submitted, err := l.Submit(r)
		require.NoError(t, err)
		streams, requests = append(streams, submitted[0]), append(requests, r)
	}
	for i, s := range streams {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, wantGuided(t, requests[i], 0), tokens)
	}
	require.LessOrEqual(t, f.largest, 8)
	require.Positive(t, l.Stats().ForcedTokens)
}

// A row that has no numbers ends its sequence before the tokens that are forced behind it are sent.
func TestBadLogitsEndForcedSequences(t *testing.T) {
	l, f := start(t, Config{}, func(f *fakeRunner) { f.nanSlot = 0 })
	streams, err := l.Submit(guided(t, Request{Prompt: prompt(9, 4), MaxTokens: 60}, `(101 202 303 ){5}`))
	require.NoError(t, err)
	tokens, _, _, err := drain(t, streams[0])
	require.ErrorIs(t, err, ErrBadLogits)
	require.Empty(t, tokens)
	require.NoError(t, f.broken)
}
