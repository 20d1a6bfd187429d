package enginetest

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Close returns an error for the first element outside its bound. An element passes if it equals
// the wanted one, or if its error is ordered and inside a finite bound, so that NaN always fails.
func Close(got []float32, want, bound []float64) error {
	if len(got) != len(want) || len(bound) != len(want) {
		return fmt.Errorf("%d elements, want %d with %d bounds", len(got), len(want), len(bound))
	}
	for i, w := range want {
		g := float64(got[i])
		if g == w {
			continue
		}
		if err := math.Abs(g - w); !(err <= bound[i]) || math.IsInf(bound[i], 0) {
			return fmt.Errorf("element %d of %d is %v, want %v: error %.3g is %.2f times its bound", i, len(want), g, w, err, err/bound[i])
		}
	}
	return nil
}

// float32 bytes, as buffers hold them; every supported processor is little endian.

func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

func floatsIn(b engine.Buffer) ([]float32, error) {
	out := make([]float32, b.Size()/4)
	_, err := b.ReadAt(bytesOf(out), 0)
	return out, err
}

func widen(f []float32) []float64 {
	out := make([]float64, len(f))
	for i, v := range f {
		out[i] = float64(v)
	}
	return out
}
