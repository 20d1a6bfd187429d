package vectors

import (
	"encoding/binary"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// sampler selects the rows that a training uses, as the rows of a data set pass.
type sampler struct {
	seed, kept, rows uint64 // selects kept of rows
	next             uint64 // selected so far
	row              uint64 // number of the row that is selected next
}

func newSampler(seed, kept, rows uint64) *sampler {
	s := &sampler{seed: seed, kept: kept, rows: rows}
	s.aim()
	return s
}

func (s *sampler) aim() {
	if s.next < s.kept {
		s.row = vq.Sample(s.seed, s.next, s.kept, s.rows)
	}
}

// keep returns the selected rows of a piece, without gaps; first is the number of its first row.
func (s *sampler) keep(rows []byte, size int, first uint64) (kept []byte) {
	end := first + uint64(len(rows)/size)
	for s.next < s.kept && s.row < end {
		piece := rows[(s.row-first)*uint64(size):]
		kept = append(kept, piece[:size]...)
		s.next++
		s.aim()
	}
	return kept
}

// infinite returns the number of the first row, of size bytes, with an element that is NaN or
// infinite; -1 if there is none. The engine checks the rows that it gets; infinite checks those
// that the sample leaves out.
func infinite(e engine.Element, rows []byte, size int) int {
	switch e {
	case engine.VectorF32:
		for i := 0; i < len(rows); i += 4 {
			if binary.LittleEndian.Uint32(rows[i:])&0x7f800000 == 0x7f800000 {
				return i / size
			}
		}
	case engine.VectorF16, engine.VectorBF16:
		exponent := uint16(0x7c00)
		if e == engine.VectorBF16 {
			exponent = 0x7f80
		}
		for i := 0; i < len(rows); i += 2 {
			if binary.LittleEndian.Uint16(rows[i:])&exponent == exponent {
				return i / size
			}
		}
	default: // integers are finite
	}
	return -1
}
