// launch: launches kernels, plainly or as programmatic dependents of the kernel before them in the stream.
//
// A dependent kernel (dependent = true) may begin while its predecessor, the kernel just before it in the stream, still
// runs. It overlaps its prologue and its weight loads with the predecessor's tail. These rules hold for every kernel:
//
//   1. Each thread that touches memory that kernels write must call grid_wait(), and some thread of every kernel must
//      call it.
//   2. Before grid_wait() a thread must write nothing, and may read only what no kernel writes that may still be
//      running (see 4).
//   3. A block calls grid_trigger() after its grid_wait(), or never. Only a kernel that is marked as short, or blocks
//      that are, may call it earlier: it must take little time and few resources of an SM, so that the next kernel may
//      overlap it.
//   4. When a kernel begins, all consecutive short kernels just before it may be running, and the one kernel ahead of
//      these. All others have ended: that kernel let others begin only after each of its blocks had waited, for which
//      everything before it had to end, and by 1 no kernel ends before it has waited.
//   5. Before the wait, memory that kernels of the same step have written is read with __ldcg. That they have ended does not make their
//      writes visible through this SM's first level cache.
//
// grid_wait() returns when the predecessor, and so every kernel before it, has ended and its writes are visible. By 4 a
// kernel may read constants (weights), and what kernels wrote long before (a step's input, block tables, slot
// parameters), before the wait. By 2 nothing is overwritten that a running kernel reads. A copy or a fill just before a
// kernel counts as its predecessor. grid_trigger() is only a hint and does not order memory. On devices before compute
// capability 9.0 both are empty, and launches are plain.
//
// The kernels of branch.h, of experts/ and of states/ are not short. Short are: rms_norm, finish_qkv, decode attention, gathers between
// GPUs, and the blocks of the sampler's gather that have nothing to do.
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

// Stream is where a launcher puts its kernels.
struct Stream {
  cudaStream_t stream = nullptr;
  bool dependent = false;  // launch as programmatic dependents: the device has compute capability 9.0 or later
};

// Launches kernel<<<grid, block, shared_bytes>>>(arguments...) and returns the launch's error.
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
