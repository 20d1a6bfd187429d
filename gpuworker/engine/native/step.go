package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// stepArgs holds one step in C's layout.
type stepArgs struct {
	step     *C.mr_step
	segments arena[C.mr_segment]
	samples  arena[C.mr_sample_row]
	scores   arena[C.mr_score_row]
	preOps   arena[C.mr_pre_op]
	params   arena[C.mr_slot_params]
	ints     arena[int32]   // tokens, block ids, hidden rows, and the id lists of parameters
	floats   arena[float32] // bias values
	masks    maskArgs
}

func (a *stepArgs) make(vocab int) {
	a.step, a.masks.words = cNew[C.mr_step](), (vocab+31)/32
}

func (a *stepArgs) free() {
	cDelete(a.step)
	a.segments.free()
	a.samples.free()
	a.scores.free()
	a.preOps.free()
	a.params.free()
	a.ints.free()
	a.floats.free()
	a.masks.free()
}

// sizes counts the elements of every arena for a step. Arenas move when they grow, so they are
// sized before they are filled.
type sizes struct{ tokens, blocks, params, ids, floats int }

func sizesOf(s *engine.Step) (n sizes, err error) {
	for i := range s.Segments {
		n.tokens += len(s.Segments[i].Tokens)
		n.blocks += len(s.Segments[i].Blocks) + len(s.Segments[i].WindowBlocks)
	}
	for i := range s.PreOps {
		n.ids += len(s.PreOps[i].History)
		if p := s.PreOps[i].Params; p != nil {
			if len(p.BiasIDs) != len(p.BiasValues) {
				return n, fmt.Errorf("slot %d has %d bias ids and %d values: %w", s.PreOps[i].Slot, len(p.BiasIDs),
					len(p.BiasValues), engine.ErrInvalid)
			}
			n.params++
			n.ids += len(p.BiasIDs) + len(p.Allowed) + len(p.Suppressed)
			n.floats += len(p.BiasValues)
		}
	}
	if max(n.tokens, n.blocks, n.ids, len(s.Segments), len(s.Samples), len(s.Scores), len(s.Hidden), len(s.PreOps)) > math.MaxInt32 {
		return n, fmt.Errorf("step does not fit 32-bit counts: %w", engine.ErrInvalid)
	}
	return n, nil
}

// pack fills the C step; its pointers are valid until the next pack.
func (a *stepArgs) pack(s *engine.Step) error {
	n, err := sizesOf(s)
	if err != nil {
		return err
	}
	if err := a.masks.place(s.Samples); err != nil {
		return err
	}
	ints := a.ints.take(n.tokens + n.blocks + len(s.Hidden) + n.ids)
	tokens, ints := ints[:n.tokens], ints[n.tokens:]
	blocks, ints := ints[:n.blocks], ints[n.blocks:]
	hidden, ids := ints[:copy(ints, s.Hidden)], ints[len(s.Hidden):]

	segments := a.segments.take(len(s.Segments))
	tokenAt, blockAt := 0, 0
	for i := range s.Segments {
		seg := &s.Segments[i]
		segments[i] = C.mr_segment{
			slot: C.int32_t(seg.Slot), slot_generation: C.uint32_t(seg.SlotGeneration), kernel_class: C.int32_t(seg.Class),
			first_position: C.int32_t(seg.FirstPosition), count: C.int32_t(len(seg.Tokens)),
			block_offset: C.int32_t(blockAt), block_count: C.int32_t(len(seg.Blocks)),
			state_from: C.int32_t(seg.StateFrom), state_to: C.int32_t(seg.StateTo),
		}
		tokenAt += copy(tokens[tokenAt:], seg.Tokens)
		blockAt += copy(blocks[blockAt:], seg.Blocks)
		if n := len(seg.WindowBlocks); n > 0 {
			segments[i].window_block_offset, segments[i].window_block_count = C.int32_t(blockAt), C.int32_t(n)
			blockAt += copy(blocks[blockAt:], seg.WindowBlocks)
		}
	}

	samples := a.samples.take(len(s.Samples))
	for i := range s.Samples {
		row := &s.Samples[i]
		samples[i] = C.mr_sample_row{
			token_index: C.int32_t(row.TokenIndex), slot: C.int32_t(row.Slot),
			slot_generation: C.uint32_t(row.SlotGeneration), position: C.int32_t(row.Position),
			mask_offset: a.masks.offset(i),
		}
	}

	scores := a.scores.take(len(s.Scores))
	for i := range s.Scores {
		row := &s.Scores[i]
		scores[i] = C.mr_score_row{
			token_index: C.int32_t(row.TokenIndex), target: C.int32_t(row.Target), top_n: C.int32_t(row.TopN),
		}
	}

	a.packPreOps(s, n, ids)
	*a.step = C.mr_step{
		struct_size:    C.sizeof_mr_step,
		segment_stride: C.sizeof_mr_segment, sample_stride: C.sizeof_mr_sample_row,
		score_stride: C.sizeof_mr_score_row, pre_op_stride: C.sizeof_mr_pre_op,
		segments: a.segments.ptr(), segment_count: C.int32_t(len(s.Segments)),
		token_count: C.int32_t(n.tokens), tokens: ptr(tokens),
		block_ids: ptr(blocks), block_id_count: C.int32_t(n.blocks),
		sample_count: C.int32_t(len(s.Samples)), samples: a.samples.ptr(),
		scores: a.scores.ptr(), score_count: C.int32_t(len(s.Scores)),
		pre_op_count: C.int32_t(len(s.PreOps)), pre_ops: a.preOps.ptr(),
		hidden_rows: ptr(hidden), hidden_count: C.int32_t(len(hidden)),
	}
	a.masks.describe(a.step)
	return nil
}

// packPreOps appends the id lists of parameters to ids.
func (a *stepArgs) packPreOps(s *engine.Step, n sizes, ids []int32) {
	preOps := a.preOps.take(len(s.PreOps))
	params := a.params.take(n.params)
	floats := a.floats.take(n.floats)
	list := func(src []int32) *C.int32_t {
		dst := ids[:copy(ids, src)]
		ids = ids[len(dst):]
		return ptr(dst)
	}
	for i := range s.PreOps {
		op := &s.PreOps[i]
		preOps[i] = C.mr_pre_op{
			struct_size: C.sizeof_mr_pre_op, kind: C.int32_t(op.Kind), slot: C.int32_t(op.Slot),
			slot_generation: C.uint32_t(op.SlotGeneration), src_block: C.int32_t(op.Src), dst_block: C.int32_t(op.Dst),
			history_count: C.int32_t(len(op.History)), history: list(op.History), window: flag(op.Window),
		}
		p := op.Params
		if p == nil {
			continue
		}
		allowed := -1
		if p.Allowed != nil {
			allowed = len(p.Allowed)
		}
		values := floats[:copy(floats, p.BiasValues)]
		floats = floats[len(values):]
		params[0] = C.mr_slot_params{
			struct_size: C.sizeof_mr_slot_params,
			seed:        C.uint64_t(p.Seed), output_index: C.int32_t(p.OutputIndex), prompt_length: C.int32_t(p.PromptLength),
			min_tokens: C.int32_t(p.MinTokens), top_n: C.int32_t(p.TopN), temperature: C.float(p.Temperature),
			top_k: C.int32_t(p.TopK), top_p: C.float(p.TopP), min_p: C.float(p.MinP), typical_p: C.float(p.TypicalP),
			repetition_penalty: C.float(p.RepetitionPenalty), presence_penalty: C.float(p.PresencePenalty),
			frequency_penalty: C.float(p.FrequencyPenalty), penalty_window: C.int32_t(p.PenaltyWindow),
			bias_count: C.int32_t(len(p.BiasIDs)), allowed_count: C.int32_t(allowed),
			suppressed_count: C.int32_t(len(p.Suppressed)),
			bias_ids:         list(p.BiasIDs), allowed_ids: list(p.Allowed), suppressed_ids: list(p.Suppressed),
		}
		if len(values) > 0 {
			params[0].bias_values = (*C.float)(&values[0])
		}
		preOps[i].params = &params[0]
		params = params[1:]
	}
}

// ptr returns the first element of a slice of C memory, or nil if it is empty.
func ptr(s []int32) *C.int32_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int32_t)(&s[0])
}
