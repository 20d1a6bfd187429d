package sametest

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// example is an answer of three tokens and two scores.
func example() answer {
	out := answer{end: endLength}
	for i := range 3 {
		out.rows = append(out.rows, engine.RowResult{
			Slot: 1, Position: int32(7 + i), Token: int32(i), Logprob: -1, Rank: 2,
			Candidates: []engine.Candidate{{Token: 5, Logprob: -0.5}, {Token: int32(i), Logprob: -1}},
		})
	}
	for i := range 2 {
		out.scores = append(out.scores, engine.RowResult{Slot: -1, Position: -1, Token: int32(i), Logprob: -3, Rank: 9})
	}
	return out
}

func TestAnyDifferenceOfAnAnswerIsFound(t *testing.T) {
	alone := example()
	require.NoError(t, alone.differ(example(), 0))
	next := math.Nextafter32(-1, 0)
	for name, change := range map[string]func(*answer){
		"a token":                            func(a *answer) { a.rows[2].Token++ },
		"a position":                         func(a *answer) { a.rows[0].Position++ },
		"a status":                           func(a *answer) { a.rows[1].Status = engine.RowNaN },
		"a rank":                             func(a *answer) { a.rows[1].Rank++ },
		"the last bit of a logprob":          func(a *answer) { a.rows[1].Logprob = next },
		"a candidate":                        func(a *answer) { a.rows[2].Candidates[1].Token++ },
		"the last bit of a candidate":        func(a *answer) { a.rows[2].Candidates[1].Logprob = next },
		"a candidate too few":                func(a *answer) { a.rows[2].Candidates = a.rows[2].Candidates[:1] },
		"a token too few":                    func(a *answer) { a.rows = a.rows[:2] },
		"a token too many":                   func(a *answer) { a.rows = append(a.rows, a.rows[0]) },
		"another score":                      func(a *answer) { a.scores[1].Logprob = next },
		"a score too few":                    func(a *answer) { a.scores = a.scores[:1] },
		"a score too many":                   func(a *answer) { a.scores = append(a.scores, a.scores[0]) },
		"another end":                        func(a *answer) { a.end = stopEnd(2) },
		"another token before it was cut":    func(a *answer) { a.rows[0].Token++; a.end = endCancelled },
		"more tokens before it was cut":      func(a *answer) { a.rows = append(a.rows, a.rows[0]); a.end = endCancelled },
		"the sign of a logprob that is zero": func(a *answer) { a.scores[0].Logprob = float32(math.Copysign(0, -1)) },
	} {
		t.Run(name, func(t *testing.T) {
			alone := example()
			alone.scores[0].Logprob = 0
			got := example()
			got.scores[0].Logprob = 0
			require.NoError(t, alone.differ(got, 0))
			change(&got)
			require.Error(t, alone.differ(got, 0))
		})
	}
}

func TestAResumedOrCutAnswerIsComparedWithItsPart(t *testing.T) {
	alone := example()
	rest := example()
	rest.rows = rest.rows[1:]
	require.NoError(t, alone.differ(rest, 1))
	require.Error(t, alone.differ(rest, 0))
	cut := answer{rows: example().rows[:1], end: endCancelled}
	require.NoError(t, alone.differ(cut, 0))
	cut.end = endLength
	require.Error(t, alone.differ(cut, 0))
	failed := example()
	failed.end, failed.scores = endEmpty, failed.scores[:1]
	require.Error(t, alone.differ(failed, 0))
	alone.end = endEmpty
	require.NoError(t, alone.differ(failed, 0))
}

func TestOneSeedDrawsOneScenario(t *testing.T) {
	opts := Options{oneClass: true, RowsEvery: 7, WideEvery: 11, LongEvery: 29}
	for i := range numOrdinary {
		opts.ordinary = append(opts.ordinary, i)
	}
	solve := func(a *ask) (answer, error) { // an answer that depends on the ask
		d := roll(streamTokens, a.params.Seed)
		out := answer{end: endLength}
		for range a.tokens {
			out.rows = append(out.rows, engine.RowResult{Token: int32(d.IntN(models[a.model].desc.Vocab))})
		}
		return out, nil
	}
	kinds := map[kind]int{}
	for seed := range uint64(120) {
		s, err := draw(seed, opts, solve)
		require.NoError(t, err)
		again, err := draw(seed, opts, solve)
		require.NoError(t, err)
		require.Equal(t, s, again)
		kinds[s.kind]++
		for i := range s.actors {
			a := &s.actors[i]
			require.Len(t, a.asks, len(a.request.Continuations))
			require.Less(t, a.follows, i)
			for j, c := range a.request.Continuations {
				ask := &a.asks[j]
				require.Equal(t, a.request.Prompt, ask.prompt)
				require.Equal(t, c.OutputIndex, ask.params.OutputIndex)
				require.LessOrEqual(t, ask.length(), s.cfg.Runner.KVBlocks*s.cfg.Runner.BlockSize, "it fits the loop alone")
				require.LessOrEqual(t, ask.length(), s.cfg.Context)
				require.LessOrEqual(t, ask.length(), sized(layoutAlone, &models[s.model]).KVBlocks*16)
				require.False(t, slices.ContainsFunc(c.Resumed, func(id int32) bool { return slices.Contains(ask.stops, id) }))
			}
		}
		layout, cfg := sized(s.layout, &models[s.model]), s.cfg.Runner
		require.LessOrEqual(t, cfg.KVBlocks, layout.KVBlocks)
		require.LessOrEqual(t, cfg.HostBlocks, layout.HostBlocks)
		require.LessOrEqual(t, cfg.MaxSequences, min(layout.MaxSequences, cfg.MaxBatchedTokens, cfg.MaxSampleRows))
		require.LessOrEqual(t, cfg.MaxBatchedTokens, layout.MaxBatchedTokens)
		require.LessOrEqual(t, cfg.MaxSampleRows, layout.MaxSampleRows)
		require.LessOrEqual(t, cfg.MaxScoreRows, layout.MaxScoreRows)
		require.Positive(t, cfg.MaxScoreRows)
	}
	require.Len(t, kinds, 9, "every kind was drawn: %v", kinds)
}
