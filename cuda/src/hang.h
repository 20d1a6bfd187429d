// hang: a kernel that does not end, for tests of hung steps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mr::cuda {

// Keeps the stream busy for `nanoseconds` of the device's own clock.
cudaError_t launch_hang(uint64_t nanoseconds, cudaStream_t stream);

}  // namespace mr::cuda
