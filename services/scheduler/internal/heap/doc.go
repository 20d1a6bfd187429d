// Package heap chooses how much the Go heap may grow between two garbage collections, by what is alive in it and by how fast it
// is allocated from.
//
// A share of what is alive, as the runtime has it, is a bad measure for a relay at both ends: with few streams a few megabytes
// are alive, and a collection every few thousand messages costs more than memory that nobody misses; with ten thousand streams
// hundreds are, and twice as much would be held for garbage that comes slowly. Where hardly anything runs, little room is best:
// what a call allocates then still lies in the processor's caches. Room and Rate decide, and are pure; Follow measures and obeys.
// Where the process may have so much memory and no more, Bound has the runtime keep below it.
package heap
