package metrics

import (
	"testing"
	"time"
)

// BenchmarkAStepOf256 measures the updates of a step of 256 decoding sequences, which take time of
// the step loop.
func BenchmarkAStepOf256(b *testing.B) {
	o := New().loopObserver("m")
	b.ReportAllocs()
	for b.Loop() {
		o.Stepped(256, 0, 256, 10*time.Millisecond)
		for range 256 {
			o.NextToken(10 * time.Millisecond)
		}
	}
}
