//go:build race

package tokenizer_test

// longRun is the length in bytes of the runs without spaces: the race detector makes encoding many
// times slower.
const longRun = 1 << 16
