package enginetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// line is one sequence in a slot, for tests that choose where each of its steps begins.
type line struct {
	slot   int32
	prompt int // positions below it are computed by the kernels of prompts, all others by those of decoding
	params *engine.SlotParams
	blocks []int32
	// window has all blocks of the window group, if the runner has one, and size is its window.
	window []int32
	size   int
}

// set returns the pre-operation that starts the line after a history.
func (l *line) set(history []int32) engine.PreOp {
	return engine.PreOp{Slot: l.slot, SlotGeneration: 1, Params: l.params, History: history}
}

// feed appends segments with the tokens of positions from .. from+len-1, each by its own kernels,
// and returns the index in the step of the first of them.
func (l *line) feed(step *engine.Step, from int, tokens ...int32) int32 {
	first := int32(0)
	for i := range step.Segments {
		first += int32(len(step.Segments[i].Tokens))
	}
	prompts := min(max(l.prompt-from, 0), len(tokens))
	add := func(class engine.KernelClass, from int, tokens []int32) {
		if len(tokens) > 0 {
			step.Segments = append(step.Segments, engine.Segment{
				Slot: l.slot, SlotGeneration: 1, Class: class, FirstPosition: int32(from), Tokens: tokens, Blocks: l.blocks,
				WindowBlocks: l.seen(from),
			})
		}
	}
	add(engine.Prefill, from, tokens[:prompts])
	add(engine.Decode, from+prompts, tokens[prompts:])
	return first
}

// seen returns the window table of a segment that begins at a position.
func (l *line) seen(from int) []int32 {
	table := slices.Clone(l.window)
	for i := range table {
		if i < engine.FirstWindowBlock(from, l.size, 16) {
			table[i] = engine.NoBlock
		}
	}
	return table
}

// sample appends a row that samples a position from the token at an index of the step.
func (l *line) sample(step *engine.Step, index int32, position int) {
	step.Samples = append(step.Samples, engine.SampleRow{
		TokenIndex: index, Slot: l.slot, SlotGeneration: 1, Position: int32(position),
	})
}

// generate starts the line after history, computes rest, and returns the rows of n tokens, one
// token a step.
func (g *rig) generate(l *line, history, rest []int32, n int) []engine.RowResult {
	g.t.Helper()
	at := len(history)
	step := &engine.Step{PreOps: []engine.PreOp{l.set(history)}}
	var rows []engine.RowResult
	for {
		first := l.feed(step, at, rest...)
		at += len(rest)
		l.sample(step, first+int32(len(rest))-1, at)
		row := g.do(step).Samples[0]
		rows = append(rows, row)
		if len(rows) == n {
			return rows
		}
		step, rest = &engine.Step{}, []int32{row.Token}
	}
}

// tokensOf returns the sampled tokens of rows.
func tokensOf(rows []engine.RowResult) []int32 {
	var out []int32
	for _, r := range rows {
		out = append(out, r.Token)
	}
	return out
}

// sameRows returns an error for the first rows that differ in more than their slots.
func sameRows(want, got []engine.RowResult) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d rows and %d", len(want), len(got))
	}
	for i, w := range want {
		q := got[i]
		if w.Position != q.Position || w.Status != q.Status || w.Token != q.Token || w.Rank != q.Rank ||
			math.Float32bits(w.Logprob) != math.Float32bits(q.Logprob) {
			return fmt.Errorf("row %d: %+v and %+v", i, w, q)
		}
		if err := equalCandidates(w.Candidates, q.Candidates); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
	}
	return nil
}

// penalised returns parameters whose samples depend on every token of the window (-1 = the whole
// history).
func penalised(window int32) *engine.SlotParams {
	p := Plain(3, 1.1)
	p.RepetitionPenalty, p.FrequencyPenalty, p.PresencePenalty, p.PenaltyWindow, p.TopN = 1.3, 0.6, 0.4, window, 4
	return p
}

// blocksFrom returns n consecutive block ids.
func blocksFrom(first, n int32) []int32 { return span(first, first+n) }
