package model

import (
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Defaults follow the device. "sim" stands for a GPU of its memory in rigs of many workers; it has no memory of the host's to
// spare, and its steps are as long as its options say.

// largeDevice is the memory, in bytes, from which on a GPU's cache holds several hundred sequences beside usual weights.
const largeDevice = 40_000_000_000

// DefaultBatchedTokens is the most tokens of one step of a device unless a worker is told otherwise. A GPU reads its
// weights once for all prompts of a step: only long steps keep its matrix units busy.
func DefaultBatchedTokens(info engine.DeviceInfo) int {
	if info.Kind == "cuda" {
		return 4096
	}
	return 512
}

// DefaultSequences is the most sequences of a model in one batch unless a worker is told otherwise: as many as still add to
// what a device of this kind and size computes in a second.
func DefaultSequences(info engine.DeviceInfo) int {
	switch {
	case info.Kind == "cpu":
		return leastSequences
	case info.BytesTotal < largeDevice:
		return 64
	}
	return 256
}

// DefaultStepTarget is the wanted length of a step that computes prompts and in which sequences decode, each of which waits for
// all of it. On a CPU a shorter step has so few prompt tokens that reading the weights is most of it.
func DefaultStepTarget(info engine.DeviceInfo) time.Duration {
	if info.Kind == "cpu" {
		return 250 * time.Millisecond
	}
	return 40 * time.Millisecond
}

// DefaultSwapSpace is the bytes of host memory for the blocks of preempted sequences. A CPU's cache is in the same memory: to
// copy it there frees nothing.
func DefaultSwapSpace(info engine.DeviceInfo) int64 {
	if info.Kind == "cuda" {
		return 4 << 30
	}
	return -1
}
