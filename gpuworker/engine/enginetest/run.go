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
	// OneClass: prefill and decode kernels give the same bits, as the device's own OneClass must say.
	OneClass bool
	// Threads opens the device with a number of threads, which must not change bits; nil = it has no such number.
	Threads func(t *testing.T, threads int) engine.Device
	// Activations is the type that products round their inputs to, F16 or BF16, by the type of the weights. Absent: int8 of
	// 32 for quantised weights, and no rounding for the others.
	Activations map[engine.Type]engine.Type
	// RoundedWeights: products of prompts round weights, too, to the type of their activations.
	RoundedWeights bool
	// Cache is the type of keys and values where a test has no reason of its own to name one and would take F32; zero = F32.
	Cache engine.Type
	// Act is the type of activations beside a cache of that type, where a test names none; zero = the engine's own for the model.
	Act engine.Type
	// Types says which types of keys and values an engine keeps with which types of activations (0 = the engine's own). Every
	// other pair that a configuration may hold is refused by name.
	Types func(kv, act engine.Type) bool
	// Slow engines score fewer texts for perplexity, and get shorter prompts at width 4096 and where sameness behind many keys is
	// judged.
	Slow bool
}

// Run checks the whole contract. Every subtest opens a device of its own and finds it empty at the end.
func Run(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	if opts.Cache != engine.F32 {
		opener = withCache(opener, opts)
	}
	for _, part := range []struct {
		name    string
		applies bool
		run     func(*testing.T, func(*testing.T) engine.Device, Options)
	}{
		{"device", true, testDevice},
		{"buffer", true, testBuffer},
		{"staging", true, testStaging},
		{"refused memory", true, testRefusedMemory},
		{"operations", opts.Numeric, testOps},
		{"products", opts.Numeric, testProducts},
		{"roles", true, testRoles},
		{"model", true, testModel},
		{"runner", true, testRunner},
		{"faults", true, testFaults},
		{"rules", true, testRules},
		{"types", true, testTypes},
		{"history", true, testHistory},
		{"speculation", true, testSpeculation},
		{"host blocks", true, testHostBlocks},
		{"late masks", true, testLateMasks},
		{"logits", opts.Numeric, testLogits},
		{"head widths", true, testHeadWidths},
		{"shapes", true, testShapes},
		{"sampling", opts.Numeric, testSampling},
		{"sameness", true, testSameness},
		{"far keys", true, testFar},
		{"far logits", opts.Numeric, testFarLogits},
		{"golden", opts.Numeric, testGolden},
	} {
		if part.applies {
			t.Run(part.name, func(t *testing.T) { part.run(t, opener, opts) })
		}
	}
}

// withCache opens devices whose runners keep keys and values, and activations, as the options say where nothing else is asked for.
func withCache(opener func(*testing.T) engine.Device, opts Options) func(*testing.T) engine.Device {
	return func(t *testing.T) engine.Device {
		t.Helper()
		return Intercept(opener(t), Hooks{Configure: func(cfg *engine.RunnerConfig) {
			if cfg.KVType == engine.F32 {
				cfg.KVType = opts.Cache
			}
			if cfg.ActType == 0 && cfg.KVType == opts.Cache {
				cfg.ActType = opts.Act
			}
		}})
	}
}

// logprobBound is how far a logprob of a model of such weights may be from the reference's: `least`, or what the rounding
// of activations asks for where that is more.
func (o Options) logprobBound(weights engine.Type, least float64) float64 {
	return max(least, activationsIn[o.Activations[weights]].max)
}
