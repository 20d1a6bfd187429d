// allocations: counts a process's requests for device memory and pinned host memory from the CUDA driver, and makes
// these calls, and those that copy or launch, fail on demand (fault injection).
//
// It is a shared library that precedes dlsym, through which the CUDA runtime finds the driver, whether linked into a
// program or into the engine. Link it to a test, or preload it into any program. If the environment's
// MILLRACE_ALLOCATIONS names a file, every allocation adds a line with the function's name to it. Memory that the
// driver allocates for itself is not counted.
#pragma once

// Kinds of calls that can fail.
enum {
  MR_DRIVER_ALLOC,         // device memory
  MR_DRIVER_FREE,          // device memory, freed
  MR_DRIVER_HOST_ALLOC,    // pinned host memory
  MR_DRIVER_HOST_FREE,
  MR_DRIVER_COPY,          // between host and device, or on the device
  MR_DRIVER_FILL,          // of device memory with a value
  MR_DRIVER_EVENT_RECORD,
  MR_DRIVER_WAIT,          // for an event or a stream
  MR_DRIVER_LAUNCH,        // of a kernel or a graph
  MR_DRIVER_KINDS
};

// Allocations so far, by all threads.
extern "C" __attribute__((visibility("default"))) unsigned long mr_allocations();

// Bytes of device memory that were allocated and not freed.
extern "C" __attribute__((visibility("default"))) unsigned long mr_device_bytes();

// Of the next calls of a kind, by any thread, `skip` pass and the `count` calls after them fail with `result`, a
// CUresult, without reaching the driver. A later request for the kind replaces this one; count 0 ends it.
extern "C" __attribute__((visibility("default"))) void mr_driver_fail(int kind, unsigned long skip, unsigned long count, int result);

// From now on only calls of threads whose GPU is `device`, the driver's number, count and fail; -1: of any GPU again.
extern "C" __attribute__((visibility("default"))) void mr_driver_fail_on(int device);

// Calls of a kind that have failed on demand.
extern "C" __attribute__((visibility("default"))) unsigned long mr_driver_failed(int kind);

// From now on device memory that is asked for is managed memory, which the driver may move, or no longer.
extern "C" __attribute__((visibility("default"))) void mr_driver_manage(int managed);
