package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// stepResults has the memory for the results of one step, in C's layout and in Go's.
type stepResults struct {
	c          *C.mr_step_result
	samples    []C.mr_row_result // of C memory
	scores     []C.mr_row_result
	candidates []C.mr_candidate
	hidden     []float32
	width      int // of a hidden row
	memory     struct {
		rows       arena[C.mr_row_result]
		candidates arena[C.mr_candidate]
		hidden     arena[float32]
	}
	out      engine.StepResult
	outCands []engine.Candidate
}

func (r *stepResults) make(cfg engine.RunnerConfig, width int) {
	r.c = cNew[C.mr_step_result]()
	rows := r.memory.rows.take(cfg.MaxSampleRows + cfg.MaxScoreRows)
	r.samples, r.scores = rows[:cfg.MaxSampleRows], rows[cfg.MaxSampleRows:]
	r.candidates = r.memory.candidates.take(len(rows) * cfg.MaxTopN)
	r.width, r.hidden = width, r.memory.hidden.take(cfg.MaxHiddenRows*width)
	r.out.Samples = make([]engine.RowResult, 0, len(r.samples))
	r.out.Scores = make([]engine.RowResult, 0, len(r.scores))
	r.outCands = make([]engine.Candidate, 0, len(r.candidates))
}

func (r *stepResults) free() {
	cDelete(r.c)
	r.memory.rows.free()
	r.memory.candidates.free()
	r.memory.hidden.free()
}

// reset offers the engine all of the memory.
func (r *stepResults) reset() {
	*r.c = C.mr_step_result{
		struct_size: C.sizeof_mr_step_result, row_stride: C.sizeof_mr_row_result,
		samples: unsafe.SliceData(r.samples), sample_capacity: C.int32_t(len(r.samples)),
		scores: unsafe.SliceData(r.scores), score_capacity: C.int32_t(len(r.scores)),
		candidates: unsafe.SliceData(r.candidates), candidate_capacity: C.int32_t(len(r.candidates)),
		hidden: (*C.float)(unsafe.SliceData(r.hidden)), hidden_capacity: C.int64_t(len(r.hidden)),
	}
}

// unpack copies the results of the engine into the reused Go result.
func (r *stepResults) unpack() (*engine.StepResult, error) {
	samples, scores, cands := int(r.c.sample_count), int(r.c.score_count), int(r.c.candidate_count)
	if samples < 0 || samples > len(r.samples) || scores < 0 || scores > len(r.scores) || cands < 0 || cands > len(r.candidates) {
		return nil, fmt.Errorf("engine gave %d sample rows, %d score rows and %d candidates, more than it was offered: %w",
			samples, scores, cands, engine.ErrDevice)
	}
	hidden := int(r.c.hidden_count) * r.width
	if hidden < 0 || hidden > len(r.hidden) {
		return nil, fmt.Errorf("engine gave %d hidden rows, more than it was offered: %w", int(r.c.hidden_count), engine.ErrDevice)
	}
	r.out.Hidden = r.hidden[:hidden] // of C memory, valid as long as the result
	r.outCands = r.outCands[:0]
	for _, c := range r.candidates[:cands] {
		r.outCands = append(r.outCands, engine.Candidate{Token: int32(c.token), Logprob: float32(c.logprob)})
	}
	var err error
	if r.out.Samples, err = r.rows(r.out.Samples[:0], r.samples[:samples]); err != nil {
		return nil, err
	}
	if r.out.Scores, err = r.rows(r.out.Scores[:0], r.scores[:scores]); err != nil {
		return nil, err
	}
	r.out.DeviceTime, r.out.BytesRead = time.Duration(r.c.device_ns), uint64(r.c.bytes_read)
	return &r.out, nil
}

func (r *stepResults) rows(out []engine.RowResult, in []C.mr_row_result) ([]engine.RowResult, error) {
	for i := range in {
		c := &in[i]
		row := engine.RowResult{
			Slot: int32(c.slot), Position: int32(c.position), Status: engine.RowStatus(c.status),
			Token: int32(c.token), Logprob: float32(c.logprob), Rank: int32(c.rank),
		}
		if n, at := int(c.candidate_count), int(c.candidate_offset); n > 0 {
			if at < 0 || n > len(r.outCands)-at {
				return nil, fmt.Errorf("engine gave row %d candidates %d to %d of %d: %w", i, at, at+n, len(r.outCands),
					engine.ErrDevice)
			}
			row.Candidates = r.outCands[at : at+n : at+n]
		}
		out = append(out, row)
	}
	return out, nil
}
