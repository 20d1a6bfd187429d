// block_copy: copies whole KV blocks between memory that the device can address: its own, and pinned host memory. A
// block is `planes` pieces of `plane_bytes` at a stride: in a pool, one for the keys and values of each layer, far
// apart; in host memory, contiguous.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

struct BlockCopy {
  const uint8_t* src;  // 16-byte aligned, like the rest
  uint8_t* dst;
  int64_t src_stride, dst_stride;  // bytes between planes
};

struct BlockCopyArgs {
  const BlockCopy* copies;  // (count) in device memory
  int32_t count;            // <= 65535
  int32_t planes;
  int64_t plane_bytes;      // a multiple of 16
};
// Copies all blocks in no particular order. No copy's source or destination may be another copy's destination.
cudaError_t launch_block_copies(const BlockCopyArgs& args, const Stream& on);

}  // namespace mr::cuda
