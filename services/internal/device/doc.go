// Package device has the flags that name a device of this machine and say how much of it to use, and opens what they name: the
// CPU engine, a GPU or the sim engine.
//
// A program puts Flags on its flag set, calls Validate once after parsing, and Open. The worker and millrace-bench take their
// device in the same words because both take it from here.
//
// It links the native engines and thereby cgo, so the scheduler and the client must not import it. It refuses to know what a
// device is used for, and the environment: what stands there is handed in by the program's config package.
package device
