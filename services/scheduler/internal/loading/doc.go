// Package loading brings models onto workers and takes them out again, for LoadModel and UnloadModel and for whoever else wants a
// model served.
//
// Start asks package place for the workers that should hold the copies, tells them, and goes on to the next one where a worker is
// lost or full. A load outlives who started it, not its Loader. It is told to be done when the fleet's snapshots show it.
//
// It refuses to know why a model is wanted; packages server and residency do.
package loading
