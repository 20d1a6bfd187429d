// Package vq is a second, plain implementation of vector codebooks: docs/decisions/029-vector-numerics.md in Go, one function for
// each of its sections, in float64 and integers.
//
// New makes a Training of rows; Round does one round of it; Codebook encodes and decodes. Everything is written for reading: no
// fast pass, no blocking of loops, one goroutine. Other engines are judged by its bits, so that nothing in it may be approximate.
//
// It refuses to know devices, slices and memory.
package vq
