// kv: how the paged key-value cache lies in device memory.
//
// A pool holds, for each layer, all keys and then all values: layers x {keys, values} x blocks x block_bytes. A block
// holds (kv_heads, block_size, head_dim) elements of the activation type, keys and values alike, so that the tokens of
// one head in one block are contiguous. Byte offsets are 64-bit throughout. Blocks hold anything until they are
// written: attention reads the positions that a row sees and no others.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace mr::cuda {

struct KvLayout {
  Act act;
  int32_t block_size;  // 16 or 32 tokens
  int32_t kv_heads;
  int32_t head_dim;    // see attention_supports

  __host__ __device__ int64_t head_elements() const { return static_cast<int64_t>(block_size) * head_dim; }
  __host__ __device__ int64_t block_elements() const { return head_elements() * kv_heads; }
  int64_t block_bytes() const { return block_elements() * static_cast<int64_t>(kActBytes); }  // keys, or values, of a layer
};

}  // namespace mr::cuda
