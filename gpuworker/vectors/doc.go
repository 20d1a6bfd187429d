// Package vectors trains vector codebooks on one device, and loads, checks and uses them.
//
// A Manager owns them. Begin reserves all of a training's memory or refuses with the numbers. The
// Training gets the rows in pieces of any size, keeps those of its sample, and trains in short
// slices between the steps of the models.
//
//	Begin -> Training: Prologue, Write -> Train: slice, rest, slice, ... -> End -> Save
//	Put   -> Arrival:  Write           -> Finish \
//	Load  -> file                                 -> loaded Codebook <- Acquire, Verify
//
// Put, Load and Unload bring codebooks in and out; Acquire holds a loaded one for a call. Its bytes
// on the device are compared with its digest when it is loaded, and periodically while it serves.
//
// The package knows rows, files and devices. It computes nothing itself, and knows neither calls
// nor messages.
package vectors

// Numerics is the version of the rules that decide the bits of a codebook
// (docs/decisions/029-vector-numerics.md).
const Numerics = "vectors-1"
