// Package device has the flags that select a device of this machine and how much of it to use, and
// opens that device: the CPU engine, a GPU or the sim engine.
//
// A program adds Flags to its flag set, calls Validate once after parsing, and Open. The worker and
// millrace-bench share these flags.
//
// The package links the native engines and so cgo. The scheduler and the client must not import it.
// It does not know the purpose of a device, and reads the environment only through a function that
// the program passes.
package device
