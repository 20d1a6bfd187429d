// Package heap chooses how much the Go heap may grow between two garbage collections, by what is alive in it.
//
// A share of what is alive, as the runtime has it, is a bad measure for a relay at both ends: with few streams a few megabytes
// are alive, and a collection every few thousand messages costs more than memory that nobody misses; with ten thousand streams
// hundreds are, and twice as much would be held for garbage that comes slowly. Room decides, and is a pure function; Follow
// measures and obeys it.
package heap
