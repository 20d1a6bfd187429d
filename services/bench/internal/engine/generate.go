package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
)

// generateTokens runs a prompt greedily on a loaded model through its step loop, as the call
// Generate does.
func generateTokens(ctx context.Context, inst *model.Instance, prompt []int32, n int) ([]int32, error) {
	limit, err := inst.Loop.Fit(len(prompt), n)
	switch {
	case err != nil:
		return nil, err
	case limit < n:
		return nil, fmt.Errorf("%w: %d tokens after a prompt of %d, and %d fit", batch.ErrTooLong, n, len(prompt), limit)
	}
	sink := &collector{}
	_, err = generate.Run(ctx, inst.Loop, nil, generate.Request{
		Prompt: prompt, Class: engine.Prefill, Sequences: 1, MaxTokens: n, NoText: true, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1},
	}, sink)
	return sink.tokens, err
}

// collector keeps the tokens of one continuation.
type collector struct{ tokens []int32 }

// Tokens implements generate.Sink.
func (c *collector) Tokens(t generate.Tokens) error {
	for i := range t.Rows {
		c.tokens = append(c.tokens, t.Rows[i].Token)
	}
	return nil
}

// Prefilled implements generate.Sink.
func (*collector) Prefilled(int) error { return nil }

// Started implements generate.Sink.
func (*collector) Started(generate.Started) error { return nil }

// Scored implements generate.Sink.
func (*collector) Scored(int, []engine.RowResult) error { return nil }

// Finished implements generate.Sink.
func (*collector) Finished(generate.Finished) error { return nil }

var _ generate.Sink = (*collector)(nil)

// answers are the tokens of sequences by index. They must be the same in every batch and every
// repeat.
type answers map[int][]int32

// compare compares the tokens of a batch with those that its sequences had before, and stores new
// ones. The error wraps ErrTokens and names the sequences that differ and the first differing
// token: several sequences of one tile that differ from the same token on point to a GEMM, a
// single sequence to its own data.
func (a answers) compare(tokens [][]int32) error {
	var others []int
	var first string
	for i, got := range tokens {
		want, known := a[i]
		if !known {
			a[i] = slices.Clone(got)
			continue
		}
		if slices.Equal(got, want) {
			continue
		}
		if len(others) == 0 {
			position := 0
			for position < min(len(got), len(want)) && got[position] == want[position] {
				position++
			}
			first = fmt.Sprintf("sequence %d from token %d on, with digest %.16s instead of %.16s", i, position, digestTokens(got), digestTokens(want))
		}
		others = append(others, i)
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%w: in a batch of %d, %d sequences have other tokens than before or than Generate gives: %s; all of them: %v",
		ErrTokens, len(tokens), len(others), first, others)
}
