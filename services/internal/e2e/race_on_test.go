//go:build race

package e2e

// raced says that the programs are built with the race detector, as the test is, so that they share
// the build cache.
const raced = true
