// Package engine is the ground floor of the worker: what an engine is, as small interfaces and value types.
//
// An engine opens devices; a device holds buffers and models; a model makes runners; a runner runs steps. The native
// engines (package native) and the sim engine (package sim) implement it, the step loop and the model life cycle use
// it, and package enginetest states its contract as a suite that every engine passes.
//
// It knows token ids, bytes and blocks; it refuses to know files, text, requests and calls.
package engine
