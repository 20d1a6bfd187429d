package enginetest

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// Options select the parts of the contract that apply to an engine.
type Options struct {
	// Numeric is true if the engine computes models. The reference then judges logits, plain
	// operations and sampling, and the golden data judge the stories models.
	Numeric bool
	// OneClass is true if prefill and decode kernels give the same bits. The device's OneClass must
	// be equal.
	OneClass bool
	// Threads opens the device with a number of threads, which must not change bits; nil = the
	// engine has no such option.
	Threads func(t *testing.T, threads int) engine.Device
	// Activations is the type that products round their inputs to, F16 or BF16, by the type of the
	// weights. Absent: int8 of 32 for quantised weights, and no rounding for the others.
	Activations map[engine.Type]engine.Type
	// RoundedWeights is true if GEMMs, at least those of prompts, also round weights to the type of
	// their activations.
	RoundedWeights bool
	// Cache is the type of keys and values in tests that do not need a particular one; zero = F32.
	Cache engine.Type
	// Act is the type of activations with that cache in such tests; zero = the engine's choice for
	// the model.
	Act engine.Type
	// Types has the types of keys and values with the types of activations that the engine supports
	// (0 = the engine's choice). Every other pair must be refused by name.
	Types func(kv, act engine.Type) bool
	// Routers are the weight types that the engine runs routers of mixtures in; nil = all. It must
	// refuse a router of another type by name before it reads the tensor.
	Routers []engine.Type
	// Slow engines score fewer texts for perplexity, and get shorter prompts at width 4096 and in
	// tests of sameness after many keys.
	Slow bool
}

// Run checks the whole contract. Every subtest opens its own device and checks that it is empty at
// the end.
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
		{"hidden rows", true, testHiddenRows},
		{"whole texts", true, testWholeTexts},
		{"logits", opts.Numeric, testLogits},
		{"head widths", true, testHeadWidths},
		{"shapes", true, testShapes},
		{"descriptions", true, testDescriptions},
		{"states", true, testStates},
		{"groups", true, testGroups},
		{"latents", true, testLatents},
		{"sampling", opts.Numeric, testSampling},
		{"experts", opts.Numeric, testExperts},
		{"sameness", true, testSameness},
		{"far keys", true, testFar},
		{"far logits", opts.Numeric, testFarLogits},
		{"far states", opts.Numeric, testFarStates},
		{"golden", opts.Numeric, testGolden},
	} {
		if part.applies {
			t.Run(part.name, func(t *testing.T) { part.run(t, opener, opts) })
		}
	}
}

// withCache opens devices whose runners have the cache and activations of the options, unless a
// test sets others.
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

// flips reports whether rounding could choose other experts than the reference does: the engine
// rounds, and a layer chooses by more than its biases. Weights are 0 to 1, so biases that are
// further apart decide alone.
func (o Options) flips(w *reference.Weights) bool {
	if o.Cache == engine.F32 {
		return false
	}
	return slices.ContainsFunc(w.Desc.Layers, func(l engine.Layer) bool {
		e := &l.MLP.Experts
		return e.Used < e.Count && !(e.ChoiceBias && slices.ContainsFunc(w.Tensors, func(t reference.Tensor) bool {
			return t.Role == engine.RoleChoiceBias && decides(t.Bytes, e)
		}))
	})
}

// decides reports whether the biases alone choose the experts of a mixture without groups.
func decides(biases []byte, e *engine.Experts) bool {
	if e.Groups > 0 || len(biases) != 4*e.Count {
		return false
	}
	var values []float64
	for i := range e.Count {
		values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(biases[4*i:]))))
	}
	slices.Sort(values)
	return values[e.Count-e.Used]-values[e.Count-e.Used-1] > 1
}

// logprobBound returns the bound of a logprob's error for a model with such weights: `least`, or
// the bound of rounded activations if that is larger.
func (o Options) logprobBound(weights engine.Type, least float64) float64 {
	return max(least, activationsIn[o.Activations[weights]].max)
}
