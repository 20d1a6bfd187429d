package model

import (
	"encoding/hex"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ClassID identifies everything that decides the bits of an answer, apart from model, request and
// seed: equal ids, equal tokens. It hashes the engine's numerics and build (which decide how
// attention is split), the device's path and compute capability, the number of multiprocessors of a
// GPU and the type of the KV cache. The number of CPU threads or of GPUs does not matter, because
// every sum is computed whole on one of them.
func ClassID(info engine.DeviceInfo, kv engine.Type) string { return classID(info, kv, 0) }

// classID is ClassID for an activation type other than the engine's choice (0: that choice).
// choices are the decisions of a load that change tokens, so that a stream must not move between workers
// that differ in it.
func classID(info engine.DeviceInfo, kv, act engine.Type, choices ...string) string {
	sms := info.SMCount
	if info.Kind == "cpu" {
		sms = 0
	}
	what := fmt.Appendf(nil, "millrace class v1\x00%s\x00%s\x00%s\x00%s\x00%d.%d\x00%d\x00%d",
		info.Kind, info.Numerics, info.Build, info.Path, info.ComputeMajor, info.ComputeMinor, sms, kv)
	if act != 0 {
		what = fmt.Appendf(what, "\x00%d", act)
	}
	for _, choice := range choices {
		what = append(what, "\x00"+choice...)
	}
	sum := blake3.Sum256(what)
	return info.Kind + "-" + hex.EncodeToString(sum[:8])
}

// Choices of a load, as classID hashes them.
const (
	// fileSampling: unset sampling parameters have the values of the model's file.
	fileSampling = "sampling of the file"
	// shortFactors: a model with LongRoPE serves at most its original context.
	shortFactors = "short factors"
	// grammarVersion: which texts a source of a constraint describes, in which tokens, and which a tool format writes. Raise
	// it if that changes for any source that is accepted, so that no stream moves between workers that differ.
	grammarVersion = "grammars 4, tools 3"
)

// DefaultKV is the default type of the KV cache: exact on a CPU. On other devices a type of half
// the size, F16 because it rounds less than BF16 and keys and values are far inside its range.
func DefaultKV(info engine.DeviceInfo) engine.Type {
	if info.Kind == "cpu" {
		return engine.F32
	}
	return engine.F16
}
