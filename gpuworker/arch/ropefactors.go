package arch

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// checkRopeFactors refuses factors that make a frequency infinite or no number at all.
func checkRopeFactors(f *gguf.File, t gguf.Tensor) error {
	raw := make([]byte, t.Size)
	if err := f.ReadAt(t, raw, 0); err != nil {
		return err
	}
	for i := range len(raw) / 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if !(v > 0) || math.IsInf(float64(v), 0) {
			return invalid("tensor %s: factor %d is %v, want a finite number above 0: the file is damaged, download or convert it again", t.Name, i, v)
		}
	}
	return nil
}
