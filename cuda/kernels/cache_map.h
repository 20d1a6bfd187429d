// cache_map: a layer's keys, or values, as tensor copies see them.
#pragma once

#include <cstdint>

#include "kernels/kv.h"

namespace mr::cuda {

// A CUtensorMap; copies read it where a kernel's parameters lie.
struct alignas(64) CacheMap {
  uint64_t words[16];
};

// The half rows of 64 dims of every head of every token, in the order they lie in: coordinates are the dim, 0 or 64, and the row,
// (block * kv_heads + head) * block_size + token. A box is those of one head in one block, swizzled in 128 bytes. The layout's elements
// are of its act, padded_dim is 64 or 128. block0: 16-byte aligned. Which blocks there are the map does not know.
cudaError_t map_cache(const KvLayout& layout, const void* block0, CacheMap* map);

}  // namespace mr::cuda
