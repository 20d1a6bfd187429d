// Package processors chooses how many processors the Go runtime uses, by the load.
//
// Relaying a message takes a few microseconds on one goroutine after another. If more processors
// are idle than there is work for, the runtime wakes one for each hop, which costs as much as the
// work. One processor relays a message in two thirds of the processor time of two, and sooner. So a
// process starts with one processor and uses more as the load requires.
//
// Count decides and is pure. Follow measures and applies its result.
package processors
