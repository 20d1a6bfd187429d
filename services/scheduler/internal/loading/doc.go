// Package loading loads models onto workers and unloads them.
//
// Start asks package placement for the workers that should hold the copies and sends each a
// LoadModel. If a worker is lost or full, the next one gets it. A load outlives the call that
// started it, but not its Loader. It ends when the fleet's snapshots show the model as ready.
//
// The package does not know why a model is wanted; packages server and residency do.
package loading
