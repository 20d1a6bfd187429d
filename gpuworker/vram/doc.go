// Package vram is safe device memory for Go: buffers that are named, counted and never freed twice.
//
// New wraps an engine.Device; Pool.Alloc gives a Buffer that holds its place in the pool's ledger until Free, and Live
// lists what is still held, so that a leak has a name; Leaked counts buffers that nobody holds any more. Upload streams bytes
// into a buffer in chunks, with progress and cancellation. Bounds and lifetimes are checked before the device is reached: use after Free is ErrFreed.
//
// It refuses to know what the bytes mean, and shows no pointer, handle or address.
package vram
