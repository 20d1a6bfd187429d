//go:build !race

package enginetest

const (
	raced      = false
	randomJobs = 200 // trainings that are compared with the reference
)
