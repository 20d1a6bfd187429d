//go:build race

package enginetest

// raced: the race detector makes the float64 reference some forty times as slow, so that fewer random codebooks are trained, and
// none of many codewords.
const (
	raced      = true
	randomJobs = 50
)
