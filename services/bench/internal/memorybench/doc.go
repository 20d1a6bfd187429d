// Package memorybench measures and tries the memory of a device: copies between it and the host, the pool of freed bytes
// against the driver, and what happens when everything is asked for, by one context and by several.
//
// Run opens the device as often as it needs and gives a Report: figures beside their roofs, and checks that hold or do
// not. Where the driver's own figures are wanted it runs the program that cuda/bench/memory.cpp is; for contexts of other
// processes it runs the caller's program, which calls Peer. The package knows devices; it refuses to know models and
// calls.
package memorybench
