//go:build !race

package tokenizer_test

// longRun is the length in bytes of the runs without spaces.
const longRun = 1 << 20
