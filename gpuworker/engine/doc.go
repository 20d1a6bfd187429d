// Package engine defines an engine, as small interfaces and value types. It imports nothing of the
// module.
//
// An engine opens devices; a device holds buffers and models; a model makes runners; a runner runs
// steps. The native engines (package native) and the sim engine (package sim) implement it, the
// step loop and the model life cycle use it, and package enginetest states its contract as a suite
// that every engine passes.
//
// Its terms are token ids, bytes and KV blocks. Files, text, requests and calls belong to the
// packages above it.
package engine
