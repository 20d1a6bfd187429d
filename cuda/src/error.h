// error: how a function of the CUDA engine fails: by throwing, with the cudaError_t as the native code. The edge turns
// it into an mr_error. Kernel launchers do not throw: they return a cudaError_t, which the caller checks here.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "cpu/error.h"

namespace mr::cuda {

using mr::cpu::Error;
using mr::cpu::fail;
using mr::cpu::guard;

// Throws when error is not cudaSuccess: RESOURCE_EXHAUSTED for want of memory, UNAVAILABLE where there is no usable
// device or driver, UNIMPLEMENTED for what this device or build cannot do, else INTERNAL. The message names the error
// and what was being done.
void check(cudaError_t error, const char* what);

std::string text_of(cudaError_t error);  // its name, and what it says

}  // namespace mr::cuda

// Checks a call of the runtime or of a kernel launcher; `what` is the call itself.
#define CUDA_CHECK(call) ::mr::cuda::check((call), #call)
