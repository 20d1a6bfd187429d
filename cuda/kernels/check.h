// check: turns the cudaError_t of a runtime call or of a kernel launcher into an exception of the engine.
//
// Launchers return their cudaError_t and never throw. Host code that calls several of them checks each one here. It
// lies below src/ because the vector search, which is host code of kernels/, checks its launches too.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "cpu/error.h"

namespace mr::cuda {

using mr::Error;

// Throws an Error if error is not cudaSuccess: RESOURCE_EXHAUSTED if memory is short, UNAVAILABLE if there is no usable
// device or driver, UNIMPLEMENTED if this device or build lacks the operation, else INTERNAL. The message names the
// CUDA error and the call.
void check(cudaError_t error, const char* what);

// Returns the name and the description of a CUDA error.
std::string text_of(cudaError_t error);

}  // namespace mr::cuda

// Checks a call of the runtime or of a kernel launcher; the message quotes the call itself.
#define CUDA_CHECK(call) ::mr::cuda::check((call), #call)
