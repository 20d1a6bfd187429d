// kv: how the paged key-value cache lies in device memory.
//
// A pool holds, for each layer, all keys and then all values: layers x {keys, values} x blocks x block_bytes. A block
// holds (kv_heads, block_size, padded_dim) elements of the activation type, keys and values alike, so that the tokens of
// one head in one block are contiguous. Dims from head_dim on are zero. Byte offsets are 64-bit throughout. Blocks hold
// anything until they are written: attention reads the positions that a row sees and no others.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/types.h"

namespace mr::cuda {

// The head dims that attention is compiled for: 32, 64, 80, 96, 128, 256. The least that holds head_dim; 0 above 256.
constexpr int32_t pad_head_dim(int32_t head_dim) {
  for (const int32_t dim : {32, 64, 80, 96, 128, 256})
    if (head_dim >= 1 && head_dim <= dim) return dim;
  return 0;
}

struct KvLayout {
  Act act;
  int32_t block_size;  // 16 or 32 tokens
  int32_t kv_heads;
  int32_t head_dim;    // 1 .. 256
  int32_t padded_dim;  // pad_head_dim(head_dim)

  __host__ __device__ int64_t head_elements() const { return static_cast<int64_t>(block_size) * padded_dim; }
  __host__ __device__ int64_t block_elements() const { return head_elements() * kv_heads; }
  int64_t block_bytes() const { return block_elements() * static_cast<int64_t>(kActBytes); }  // keys, or values, of a layer
};

}  // namespace mr::cuda
