// Package placement decides which workers hold the copies of a model or codebook.
//
// Choose ranks workers by rendezvous hashing of name and worker id. So any two schedulers that see
// the same workers choose the same ones, and a worker that joins or leaves moves no copy between
// the others. Existing copies come first.
//
// The package is pure and imports the standard library only. It loads nothing.
package placement
