// launch: kernel launches, plain or as a programmatic dependent of the kernel before in the stream.
//
// A dependent kernel (dependent = true) may begin while its predecessor, the kernel just before it in the stream, still runs.
// These rules hold for every kernel:
//
//   1. Each thread that touches memory that kernels write calls grid_wait(), and some thread of every kernel does.
//   2. Before grid_wait() a thread writes nothing, and reads only what no kernel writes that may still be running (see 4).
//   3. A block calls grid_trigger() behind its grid_wait(), or not at all; or before it, in a kernel that says it is short, or in blocks of
//      which it says so: one that takes little time and little of a multiprocessor, so that what is behind it may begin meanwhile.
//   4. When a kernel begins, short kernels just before it may be running, all that stand in a row, and the one in front of these. All
//      others have ended: the one in front let others begin when each of its blocks had waited, for which everything before it had to
//      end; by 1 no kernel ends before it has waited.
//
// grid_wait() returns when the predecessor has ended, and so every kernel before it, and their writes are visible. By 4 constants
// (weights), and what kernels wrote long before (a step's input, block tables, slot parameters), may be read before the wait. By
// 2 nothing is overwritten that a running kernel reads. A copy or a fill that comes just before a kernel counts as its predecessor.
// grid_trigger() is only a hint, and says nothing about memory. On devices before compute capability 9.0 both are empty, and
// launches are plain.
//
// Short are: rms_norm, finish_qkv, decode attention, gathers between GPUs; of the sampler's kernel gather the blocks that have nothing to do.
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
