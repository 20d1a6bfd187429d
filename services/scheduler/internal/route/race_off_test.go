//go:build !race

package route_test

// raced reports whether the test runs with the race detector.
const raced = false
