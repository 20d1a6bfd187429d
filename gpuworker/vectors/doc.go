// Package vectors is the life of vector codebooks on one device: trainings, and codebooks that are loaded, checked and used.
//
// A Manager owns them. Begin takes all of a training's memory, or says by the numbers why it cannot; the Training gets the rows
// in any pieces, keeps those that its sample wants, trains in short slices that give way to tokens, and gives the codebook.
// Put, Load and Unload bring codebooks in and out; Acquire gives a loaded one to a call and keeps it until released. Its bytes
// on the device are compared with its digest when it is loaded and again while it serves.
//
// It knows rows, files and devices. It computes nothing itself, and refuses to know calls and messages.
package vectors

// Numerics is the version of the rules that decide the bits of a codebook (docs/decisions/029-vector-numerics.md).
const Numerics = "vectors-1"
