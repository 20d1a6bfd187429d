// Package enginetest is the contract of package engine as a suite: Run takes a function that opens
// a device and checks every promise of an engine, from the bounds of a buffer to the bits of a
// logprob.
//
// An engine's test calls Run once for each of its paths, with Options that select the parts that
// apply: the sim engine has no arithmetic to check. Intercept wraps a device with hooks, for tests
// of the layers above and for mutants that prove that the suite can fail. Random and FromFile make
// models. Package reference computes the expected results. RunVectors is the same for vector
// codebooks, of which every bit must be that of package vq.
//
// The package has no code for a particular engine, and measures no time.
package enginetest
