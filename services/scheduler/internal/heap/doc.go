// Package heap chooses how much the Go heap may grow between two garbage collections, from the live
// heap and the rate of allocation.
//
// GOGC, a share of the live heap, suits a relay badly at both ends. With few streams a few
// megabytes are live, and a collection every few thousand messages costs more than memory that is
// not needed otherwise. With ten thousand streams hundreds of megabytes are live, and as much again
// would be reserved for garbage that accumulates slowly. On an idle process a small heap is best,
// because the memory of a call then stays in the processor's caches.
//
// Room and Rate decide and are pure. Follow measures and applies their result. Bound makes the
// runtime respect the memory limit of the process.
package heap
