package metrics

import (
	"testing"
	"time"
)

// BenchmarkAStepOf256 is what a step of 256 sequences that decode tells, in the loop's own time.
func BenchmarkAStepOf256(b *testing.B) {
	o := New().Observe("m")
	b.ReportAllocs()
	for b.Loop() {
		o.Stepped(256, 0, 256, 10*time.Millisecond)
		for range 256 {
			o.NextToken(10 * time.Millisecond)
		}
	}
}
