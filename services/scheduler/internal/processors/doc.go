// Package processors chooses how many processors the Go runtime uses, by the load.
//
// What a relay does for a message takes a few microseconds on one goroutine after another. Where more processors are idle
// than there is work for, the runtime wakes one for each hop, and the waking costs as much as the work: one processor relays
// a message for two thirds of what two take, and sooner. So a process begins with one and takes more as it needs them. Count
// decides, and is a function of what it was told; Follow measures and obeys it.
package processors
