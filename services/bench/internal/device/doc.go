// Package device measures a device without a model: its plain operations and its memory.
//
// RunOps times every plain operation of the engine's contract on the CPU engine and on another
// device, as a share of a roof that is measured in the same run. A result counts only if it is
// correct: sampled elements are compared with float64, and every element of the other device with
// the CPU engine's.
//
// RunMemory measures copies between device and host and the pool of freed blocks, and checks what
// happens when one context or several request all memory. The driver's own figures come from the
// program of cuda/bench/memory.cpp, and contexts of other processes from the caller's program,
// which calls Peer.
//
// MeasureRoofs returns the rates that a device measures of itself. The package knows nothing of
// models and calls.
package device
