// block_copy: copies whole KV blocks between memory that the device can address: its own, and pinned host memory. A
// block is pieces at a stride: in a pool, one for the keys and values of each layer, far apart; in host memory,
// contiguous. Layers whose pieces have another size are another group of pieces, and another launch.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

// One side of a copy: block `block` of the pool at `base`, or if block is -1 the host memory at `base`.
struct BlockSide {
  uint8_t* base;  // 16-byte aligned
  int64_t block;
};
struct BlockCopy {
  BlockSide src, dst;
};

// Pieces of equal size in every block. Those of block 0 begin pool_at behind the pool's begin and are pool_stride apart; in
// host memory they begin host_at behind the block's.
struct BlockGroup {
  int32_t planes;
  int64_t plane_bytes;  // a multiple of 16
  int64_t pool_at, pool_stride, host_at;
};

struct BlockCopyArgs {
  const BlockCopy* copies;  // (count) in device memory
  int32_t count;            // <= 65535
  BlockGroup group;
};
// Copies the group's pieces of all blocks in no particular order. No copy's source or destination may be another copy's destination.
cudaError_t launch_block_copies(const BlockCopyArgs& args, const Stream& on);

}  // namespace mr::cuda
