// Package simfleet runs the shipped programs for benchmarks: workers on the sim engine that have one model loaded, and schedulers
// over them, all on loopback.
//
// Start starts the workers, Schedule a scheduler over the first of them, Stop ends everything. Programs that end by themselves,
// or not well, are errors. What is asked of them is the caller's.
package simfleet
