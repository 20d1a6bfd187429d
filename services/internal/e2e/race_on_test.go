//go:build race

package e2e

// raced is whether the programs are built with the race detector: when the test itself is, so that they share what the
// build cache holds.
const raced = true
