// Package place decides which workers hold the copies of a model.
//
// Choose ranks workers by rendezvous hashing of model and worker id: any two schedulers that see the same workers
// choose alike, and a worker that joins or leaves moves no copy between the others. Copies that exist count first.
//
// It is pure and imports the standard library only; it loads nothing.
package place
