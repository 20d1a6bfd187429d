// Package enginetest is the contract of package engine as a suite: Run takes a function that opens a device and checks
// everything an engine promises, from the bounds of a buffer to the bits of a logprob.
//
// An engine's own test calls Run once for each of its paths, with Options that say which parts apply: the sim engine has
// no arithmetic to check. Intercept wraps any device with hooks, for tests of the layers above and for mutants that
// prove the suite can fail; Random and FromFile make models for it; package reference is the arithmetic it trusts.
// RunVectors is the same for vector codebooks, of which every bit is that of package vq.
//
// It refuses to know any particular engine, and to measure time.
package enginetest
