package model

import (
	"encoding/hex"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ClassID identifies everything besides model, request and seed that decides bits: equal ids, equal tokens. It hashes
// the engine's numerics and build (which decide how attention is split), the device's path and compute capability, the number
// of multiprocessors of a GPU and the type of the KV cache. Neither the threads of a CPU nor the number of GPUs that a model is
// divided among change anything: every sum is computed whole on one of them. A model has no adapters.
func ClassID(info engine.DeviceInfo, kv engine.Type) string { return classID(info, kv, 0, false) }

// classID is ClassID with a type of activations that is not the engine's own for the model; 0: it is. defaults says whether unset
// knobs of a request have values of the model's file: then an equal request may give other tokens, and no stream must move between
// workers that differ in that.
func classID(info engine.DeviceInfo, kv, act engine.Type, defaults bool) string {
	sms := info.SMCount
	if info.Kind == "cpu" {
		sms = 0
	}
	what := fmt.Appendf(nil, "millrace class v1\x00%s\x00%s\x00%s\x00%s\x00%d.%d\x00%d\x00%d",
		info.Kind, info.Numerics, info.Build, info.Path, info.ComputeMajor, info.ComputeMinor, sms, kv)
	if act != 0 {
		what = fmt.Appendf(what, "\x00%d", act)
	}
	if defaults {
		what = append(what, "\x00sampling of the file"...)
	}
	sum := blake3.Sum256(what)
	return info.Kind + "-" + hex.EncodeToString(sum[:8])
}

// DefaultKV is the type of the KV cache where nobody chose: exact on a CPU; elsewhere of half the bytes, and of these the one that rounds
// less: keys and values of models lie far within its range.
func DefaultKV(info engine.DeviceInfo) engine.Type {
	if info.Kind == "cpu" {
		return engine.F32
	}
	return engine.F16
}
