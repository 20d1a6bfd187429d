//go:build race

package enginetest

// Raced is true under the race detector. It makes the float64 reference some forty times as slow,
// so that fewer random codebooks are trained, and none with many codewords.
const (
	Raced      = true
	randomJobs = 50
)
