// block_copy: whole blocks of the key-value cache, between places that the device reads and writes: its own memory, and pinned
// host memory. A block is `planes` pieces of `plane_bytes`, which lie a stride apart: a pool's blocks have one for each layer's
// keys and values, far apart, where a block in host memory is of one piece.
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
// All at once, in no order: no copy's source or destination may be another one's destination.
cudaError_t launch_block_copies(const BlockCopyArgs& args, const Stream& on);

}  // namespace mr::cuda
