// Package vq is a second, plain implementation of vector codebooks. It is
// docs/decisions/029-vector-numerics.md in Go, one function for each of its sections, in float64
// and integers.
//
// New makes a Training of rows; Round does one round of it; Codebook encodes and decodes.
// The code is written for reading: no fast pass, no blocked loops, one goroutine. Engines must have
// its bits, so nothing in it may be approximate. Devices, slices and memory belong to engines.
package vq
