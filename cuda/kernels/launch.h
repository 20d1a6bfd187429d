// launch: kernel launches, plain or as a programmatic dependent of the kernel before in the stream.
//
// A dependent kernel (dependent = true) may begin while its predecessor still runs: it calls grid_wait() before it
// reads or writes anything that an earlier kernel of the stream wrote or reads, and may load constants (weights) before
// that. Every kernel launched so must call grid_wait() in every thread that touches memory, since its own successor
// relies on it transitively. grid_trigger() lets the successor start; it is only a hint, and says nothing about memory.
// On devices before compute capability 9.0 both are empty, and launches are plain.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace mr::cuda {

__device__ __forceinline__ void grid_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Where a launcher puts its kernels.
struct Stream {
  cudaStream_t stream = nullptr;
  bool dependent = false;  // launch as programmatic dependents: the device has compute capability 9.0 or later
};

// Launches kernel<<<grid, block, shared_bytes>>>(arguments...) and gives the launch's error.
template <class... Parameters, class... Arguments>
inline cudaError_t launch(const Stream& on, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(Parameters...),
                          Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = on.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = on.dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

}  // namespace mr::cuda
