// block_copy: one grid for all KV block copies of a step. A copy engine would need one strided command for each block;
// one launch has enough requests in flight to fill the link to the host in either direction.
//
// Block (i, c) of kThreads moves kPart bytes of copy c: part i % parts of plane i / parts. Each thread loads all of its
// words before it stores the first, so that all are in flight together: a word from the host takes over a microsecond.
#include <cstdint>

#include "kernels/block_copy.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;  // of 16 bytes, a thread
constexpr int64_t kPart = int64_t{kThreads} * kWords * 16;

// The group's piece `plane` of a block.
__device__ __forceinline__ uint8_t* piece_of(const BlockSide& side, const BlockGroup& group, int64_t plane) {
  return side.block < 0 ? side.base + group.host_at + plane * group.plane_bytes
                        : side.base + group.pool_at + side.block * group.plane_bytes + plane * group.pool_stride;
}

__global__ void __launch_bounds__(kThreads) copy_parts(BlockCopyArgs a, int32_t parts) {
  grid_wait();
  const BlockCopy copy = a.copies[blockIdx.y];
  const int64_t plane = static_cast<int64_t>(blockIdx.x) / parts, at = static_cast<int64_t>(blockIdx.x) % parts * kPart;
  const int64_t words = (a.group.plane_bytes - at) / 16;  // from here to the end of the plane
  const uint4* const from = reinterpret_cast<const uint4*>(piece_of(copy.src, a.group, plane) + at);
  uint4* const to = reinterpret_cast<uint4*>(piece_of(copy.dst, a.group, plane) + at);
  uint4 held[kWords] = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = i * kThreads + static_cast<int>(threadIdx.x);
    if (word < words) held[i] = from[word];
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = i * kThreads + static_cast<int>(threadIdx.x);
    if (word < words) to[word] = held[i];
  }
}

}  // namespace

cudaError_t launch_block_copies(const BlockCopyArgs& args, const Stream& on) {
  const BlockGroup& group = args.group;
  if (args.count < 0 || args.count > 65535 || group.planes < 0 || group.plane_bytes < 0 || group.plane_bytes % 16 != 0)
    return cudaErrorInvalidValue;
  if (args.count == 0 || group.planes == 0 || group.plane_bytes == 0) return cudaSuccess;
  const int64_t parts = (group.plane_bytes + kPart - 1) / kPart, blocks = parts * group.planes;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(args.count)), dim3(kThreads), 0, copy_parts, args,
                static_cast<int32_t>(parts));
}

}  // namespace mr::cuda
