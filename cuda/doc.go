// Package cuda names the sources of the CUDA engine, which lie beside it: C++ and CUDA that cmake builds into
// libmillrace_cuda.so, and that no Go program is linked with.
//
// Sources gives the digest that a library of the same sources carries, so that a worker can refuse another one. The package
// refuses to know everything else of the engine: gpuworker/engine/native opens it.
package cuda
