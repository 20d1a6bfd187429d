// Package opsbench times an engine's plain operations on the CPU engine and on another device, side by side.
//
// Run does everything and gives a Report: for each operation the time of either device, the rate beside a roof measured
// in the same run, and the speed-up. A result counts only if it is right: sampled elements are held against float64, and
// every element of the other device against the CPU engine's. Which operations there are is a table (tasks.go). The
// package knows devices; it refuses to know models and calls.
package opsbench
