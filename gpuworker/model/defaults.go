package model

import (
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// The defaults follow the device. "sim" stands for a GPU of its memory size in tests of many
// workers. It has no host memory to spare, and its options set the length of its steps.
//
// largeDevice is the memory, in bytes, above which a GPU's cache holds several hundred sequences
// next to usual weights.
const largeDevice = 40_000_000_000

// DefaultBatchedTokens is the default limit of tokens in a step. A GPU reads its weights once for
// all prompts of a step, so only long steps keep its matrix units busy.
func DefaultBatchedTokens(info engine.DeviceInfo) int {
	if info.Kind == "cuda" {
		return 4096
	}
	return 512
}

// DefaultSequences is the default limit of sequences in a batch: more would not raise the
// throughput of a device of this kind and size.
func DefaultSequences(info engine.DeviceInfo) int {
	switch {
	case info.Kind == "cpu":
		return minSequences
	case info.BytesTotal < largeDevice:
		return 64
	}
	return 256
}

// DefaultStepTarget is the wanted length of a step with prompts and decoding sequences, each of
// which waits for all of it. In a shorter step, reading the weights would dominate: on a CPU for
// any model, on a GPU for a mixture of experts.
func DefaultStepTarget(info engine.DeviceInfo) time.Duration {
	if info.Kind == "cpu" {
		return 250 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// DefaultSwapSpace is the host memory in bytes for blocks of preempted sequences. On a CPU the KV
// cache is in the same memory, so that copying it frees nothing.
func DefaultSwapSpace(info engine.DeviceInfo) int64 {
	if info.Kind == "cuda" {
		return 4 << 30
	}
	return -1
}
