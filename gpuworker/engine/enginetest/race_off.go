//go:build !race

package enginetest

// Raced is true under the race detector.
const (
	Raced      = false
	randomJobs = 200 // trainings that are compared with the reference
)
