// Package cuda embeds the sources of the CUDA engine, which lie in its folders. CMake builds them
// into libmillrace_cuda.so; no Go program links that library.
//
// Sources returns the digest that a library built from the same sources carries, so that a worker
// can refuse any other library. The package contains nothing else of the engine:
// gpuworker/engine/native opens it.
package cuda
