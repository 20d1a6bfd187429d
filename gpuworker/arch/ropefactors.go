package arch

import (
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// checkRopeFactors refuses factors that make a frequency infinite or no number at all.
func checkRopeFactors(f *gguf.File, t gguf.Tensor) error {
	raw := make([]byte, t.Size)
	if err := f.ReadAt(t, raw, 0); err != nil {
		return err
	}
	factors := make([]float64, t.Elements())
	if err := dequant.Dequantize(t.Type, raw, factors); err != nil {
		return err
	}
	for i, v := range factors {
		if !(v > 0) || math.IsInf(v, 0) {
			return invalid("tensor %s: factor %d is %v, want a finite number above 0: the file is damaged, download or convert it again", t.Name, i, v)
		}
	}
	return nil
}
