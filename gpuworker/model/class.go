package model

import (
	"encoding/hex"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ClassID identifies everything besides model, request and seed that decides bits: equal ids, equal tokens. It hashes
// the engine's numerics and build, the device's path and compute capability, the number of multiprocessors of a GPU
// (threads of a CPU change nothing) and the type of the KV cache.
func ClassID(info engine.DeviceInfo, kv engine.Type) string {
	sms := info.SMCount
	if info.Kind == "cpu" {
		sms = 0
	}
	sum := blake3.Sum256(fmt.Appendf(nil, "millrace class v1\x00%s\x00%s\x00%s\x00%s\x00%d.%d\x00%d\x00%d",
		info.Kind, info.Numerics, info.Build, info.Path, info.ComputeMajor, info.ComputeMinor, sms, kv))
	return info.Kind + "-" + hex.EncodeToString(sum[:8])
}

// DefaultKV is the type of the KV cache where nobody chose: exact on a CPU, half the bytes elsewhere.
func DefaultKV(info engine.DeviceInfo) engine.Type {
	if info.Kind == "cpu" {
		return engine.F32
	}
	return engine.BF16
}

// DefaultBatchedTokens is the most tokens of one step of a device unless a worker is told otherwise. A GPU reads its
// weights once a step: only long steps keep its matrix units busy.
func DefaultBatchedTokens(info engine.DeviceInfo) int {
	if info.Kind == "cuda" {
		return 4096
	}
	return 512
}
