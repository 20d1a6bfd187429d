package vectors

import (
	"encoding/binary"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// sampler keeps of a data set's rows, as they pass, those that a training uses.
type sampler struct {
	seed, kept, of uint64 // rows kept of all
	next           uint64 // rows kept so far
	at             uint64 // the data's row that is kept next
}

func newSampler(seed, kept, of uint64) *sampler {
	s := &sampler{seed: seed, kept: kept, of: of}
	s.aim()
	return s
}

func (s *sampler) aim() {
	if s.next < s.kept {
		s.at = vq.Sample(s.seed, s.next, s.kept, s.of)
	}
}

// keep gives the rows of a piece that are kept, one behind the other; first is the number of its first row.
func (s *sampler) keep(rows []byte, size int, first uint64) (kept []byte) {
	end := first + uint64(len(rows)/size)
	for s.next < s.kept && s.at < end {
		row := rows[(s.at-first)*uint64(size):]
		kept = append(kept, row[:size]...)
		s.next++
		s.aim()
	}
	return kept
}

// infinite is the first row, of size bytes, with an element that is a NaN or an infinity; -1 where there is none. A training's engine
// looks at the rows that it gets; this is for those that a sample leaves out.
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
