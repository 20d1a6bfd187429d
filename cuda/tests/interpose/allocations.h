// allocations: counts what a process asks of the CUDA driver in device memory and pinned host memory.
//
// A shared library that stands before dlsym, by which the CUDA runtime, linked into a program or into the engine, finds the
// driver: linked to a test, or preloaded into any program. Where the environment's MILLRACE_ALLOCATIONS names a file, every
// call adds a line with the function's name to it. Memory that the driver takes for itself is not counted.
#pragma once

// Calls so far, by all threads.
extern "C" __attribute__((visibility("default"))) unsigned long mr_allocations();
