package enginebench

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
)

// Generate runs a prompt greedily on a loaded model, through its step loop, as the call of that name does.
func Generate(ctx context.Context, inst *model.Instance, prompt []int32, n int) ([]int32, error) {
	most, err := inst.Loop.Fit(len(prompt), n)
	switch {
	case err != nil:
		return nil, err
	case most < n:
		return nil, fmt.Errorf("%w: %d tokens behind a prompt of %d, and %d fit", batch.ErrTooLong, n, len(prompt), most)
	}
	to := &collector{}
	_, err = generate.Run(ctx, inst.Loop, nil, generate.Request{
		Prompt: prompt, Class: engine.Prefill, Sequences: 1, MaxTokens: n, NoText: true, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1},
	}, to)
	return to.tokens, err
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
