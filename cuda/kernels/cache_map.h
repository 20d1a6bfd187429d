// cache_map: describes a layer's keys, or values, to TMA copies.
#pragma once

#include <cstdint>

#include "kernels/kv.h"

namespace mr::cuda {

// CacheMap is a CUtensorMap; it must be a kernel parameter.
struct alignas(64) CacheMap {
  uint64_t words[16];
};

// Describes the half rows of 64 dims of every head of every token, in memory order: the coordinates are the dim, a
// multiple of 64, and the row, (block * kv_heads + head) * block_size + token. A box is the half rows of one head in one block,
// with 128-byte swizzle; dims from padded_dim on, which the last half row lacks if padded_dim is not a multiple of 64, are zeros. The
// layout must have elements of its activation type. block0: 16-byte aligned. The map does not bound the blocks.
cudaError_t map_cache(const KvLayout& layout, const void* block0, CacheMap* map);

}  // namespace mr::cuda
