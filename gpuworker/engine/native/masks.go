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

// maskArgs holds the masks of a step in C memory, one behind the other. Rows that follow each other with the same mask share it.
// Where one row's mask comes late, all of the step's are given to the engine late: those that are there wait here for the others.
type maskArgs struct {
	words   int     // of every mask: one bit a token of the vocabulary
	offsets []int32 // by sample row of the step being packed: words before its mask, or -1
	late    []int32 // of those, the rows' whose masks come late
	total   int     // words
	memory  arena[uint32]

	// Of the step submitted last, while it waits.
	waiting struct {
		late   []int32
		total  int
		memory arena[uint32]
	}
}

// place copies the masks that are there.
func (m *maskArgs) place(rows []engine.SampleRow) error {
	m.offsets, m.late, m.total = m.offsets[:0], m.late[:0], 0
	for i := range rows {
		row := &rows[i]
		at := int32(-1)
		switch {
		case row.Mask != nil && row.MaskLate:
			return fmt.Errorf("sample row %d has a mask that is to come late: %w", i, engine.ErrInvalid)
		case row.Mask != nil && len(row.Mask) != m.words: // a short one would be read into the next row's
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

// next is the place behind the masks placed so far.
func (m *maskArgs) next() int32 {
	at := m.total
	m.total += m.words
	return int32(at)
}

func (m *maskArgs) offset(row int) C.int32_t { return C.int32_t(m.offsets[row]) }

// describe tells a step of its masks.
func (m *maskArgs) describe(step *C.mr_step) {
	step.mask_words = C.int64_t(m.total)
	if len(m.late) > 0 {
		step.flags = C.MR_STEP_LATE_MASKS
	} else {
		step.masks = (*C.uint32_t)(m.memory.ptr())
	}
}

// submitted keeps what the step that the engine has just taken waits for; one that waits for nothing leaves nothing.
func (m *maskArgs) submitted() {
	w := &m.waiting
	w.late, m.late = m.late, w.late
	w.memory, m.memory = m.memory, w.memory
	w.total = m.total
}

// fill puts masks beside those that were there, and returns all of the step's. ErrInvalid changes nothing that counts.
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

// given forgets what was waited for.
func (m *maskArgs) given() { m.waiting.late = m.waiting.late[:0] }

func (m *maskArgs) free() {
	m.memory.free()
	m.waiting.memory.free()
}
