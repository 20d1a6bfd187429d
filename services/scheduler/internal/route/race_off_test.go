//go:build !race

package route_test

// raced is whether the race detector watches the test.
const raced = false
