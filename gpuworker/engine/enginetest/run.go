package enginetest

import (
	"testing"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options say which parts of the contract apply to an engine.
type Options struct {
	// Numeric: logits are a model's, so they, the plain operations and the sampling are judged by the reference, and the
	// stories models by their golden data.
	Numeric bool
	// OneClass: prefill and decode kernels give the same bits.
	OneClass bool
	// Threads opens the device with a number of threads, which must not change bits; nil = it has no such number.
	Threads func(t *testing.T, threads int) engine.Device
	// Activations is the type that products round their inputs to, F16 or BF16, by the type of the weights. Absent: int8 of
	// 32 for quantised weights, and no rounding for the others.
	Activations map[engine.Type]engine.Type
	// Slow engines score fewer texts for perplexity and shorter prompts at width 4096.
	Slow bool
}

// Run checks the whole contract. Every subtest opens a device of its own and finds it empty at the end.
func Run(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	for _, part := range []struct {
		name    string
		applies bool
		run     func(*testing.T, func(*testing.T) engine.Device, Options)
	}{
		{"device", true, testDevice},
		{"buffer", true, testBuffer},
		{"operations", opts.Numeric, testOps},
		{"products", opts.Numeric, testProducts},
		{"model", true, testModel},
		{"runner", true, testRunner},
		{"faults", true, testFaults},
		{"logits", opts.Numeric, testLogits},
		{"sampling", opts.Numeric, testSampling},
		{"sameness", true, testSameness},
		{"golden", opts.Numeric, testGolden},
	} {
		if part.applies {
			t.Run(part.name, func(t *testing.T) { part.run(t, opener, opts) })
		}
	}
}
