// Package vram is safe device memory for Go: buffers that are named, counted and never freed twice.
//
// New wraps an engine.Device. Pool.Alloc returns a Buffer that is counted in the pool until Free.
// Live lists the buffers that are not freed yet, so that a leak has a name. Leaked counts buffers
// that were garbage collected, or live at Close, without Free. Bounds and lifetimes are checked
// before the device is reached: use after Free returns ErrFreed.
//
// The package does not interpret the bytes and returns no pointer, handle or address.
package vram
