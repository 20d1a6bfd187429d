package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// maskArgs has the masks of a step in C memory, contiguously. Consecutive rows with the same mask
// share it. If the mask of one row comes late, the engine gets all masks of the step late, and the
// others wait here.
type maskArgs struct {
	words   int     // of every mask: one bit a token of the vocabulary
	offsets []int32 // by sample row of the step that is packed: words before its mask, or -1
	late    []int32 // offsets of the rows whose masks come late
	total   int     // words
	memory  arena[uint32]

	// The step that was submitted last, while it waits.
	waiting struct {
		late   []int32
		total  int
		memory arena[uint32]
	}
}

// place copies the masks that are not late.
func (m *maskArgs) place(rows []engine.SampleRow) error {
	m.offsets, m.late, m.total = m.offsets[:0], m.late[:0], 0
	for i := range rows {
		row := &rows[i]
		at := int32(-1)
		switch {
		case row.Mask != nil && row.MaskLate:
			return fmt.Errorf("sample row %d has a mask that is to come late: %w", i, engine.ErrInvalid)
		case row.Mask != nil && len(row.Mask) != m.words: // the engine would read a short one into that of the next row
			return fmt.Errorf("sample row %d has a mask of %d words, want %d: %w", i, len(row.Mask), m.words, engine.ErrInvalid)
		case m.total > math.MaxInt32-m.words:
			return fmt.Errorf("masks do not fit 32-bit counts: %w", engine.ErrInvalid)
		case row.MaskLate:
			at = m.next()
			m.late = append(m.late, at)
		case row.Mask == nil:
		case i > 0 && unsafe.SliceData(row.Mask) == unsafe.SliceData(rows[i-1].Mask):
			at = m.offsets[i-1]
		default:
			at = m.next()
		}
		m.offsets = append(m.offsets, at)
	}
	memory := m.memory.take(m.total)
	for i := range rows {
		if rows[i].Mask != nil {
			copy(memory[m.offsets[i]:], rows[i].Mask)
		}
	}
	return nil
}

// next returns the offset after the masks that were placed.
func (m *maskArgs) next() int32 {
	at := m.total
	m.total += m.words
	return int32(at)
}

func (m *maskArgs) offset(row int) C.int32_t { return C.int32_t(m.offsets[row]) }

// describe sets the masks of a C step.
func (m *maskArgs) describe(step *C.mr_step) {
	step.mask_words = C.int64_t(m.total)
	if len(m.late) > 0 {
		step.flags = C.MR_STEP_LATE_MASKS
	} else {
		step.masks = (*C.uint32_t)(m.memory.ptr())
	}
}

// submitted stores the late masks of the step that the engine has accepted, if it has any.
func (m *maskArgs) submitted() {
	w := &m.waiting
	w.late, m.late = m.late, w.late
	w.memory, m.memory = m.memory, w.memory
	w.total = m.total
}

// fill adds late masks to the others, and returns all masks of the step. After ErrInvalid the step
// still waits.
func (m *maskArgs) fill(masks [][]uint32) ([]uint32, error) {
	w := &m.waiting
	if len(w.late) == 0 {
		return nil, fmt.Errorf("no step waits for masks: %w", engine.ErrPrecondition)
	}
	if len(masks) != len(w.late) {
		return nil, fmt.Errorf("%d masks given, want %d: %w", len(masks), len(w.late), engine.ErrInvalid)
	}
	memory := unsafe.Slice(w.memory.ptr(), w.total)
	for i, mask := range masks {
		if len(mask) != m.words {
			return nil, fmt.Errorf("mask %d has %d words, want %d: %w", i, len(mask), m.words, engine.ErrInvalid)
		}
		copy(memory[w.late[i]:], mask)
	}
	return memory, nil
}

// given ends the wait for masks.
func (m *maskArgs) given() { m.waiting.late = m.waiting.late[:0] }

func (m *maskArgs) free() {
	m.memory.free()
	m.waiting.memory.free()
}
