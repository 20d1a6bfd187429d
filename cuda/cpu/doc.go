// Package cpu is the CPU engine: C++ in this directory, compiled by cgo and linked into the binary.
//
// Table gives its function table, declared in cuda/include/millrace/engine.h; package gpuworker/engine/native binds it
// like that of any other engine, and is the only user. The engine is the default on every machine, and the truth that
// the kernels of other devices are tested against.
//
// It refuses to know files, text, requests and calls: it holds bytes and runs steps.
package cpu
