// kv: the layout of the paged key-value cache in device memory.
//
// A pool holds, for each layer, all keys and then all values: layers x {keys, values} x blocks x block_bytes. A KV
// block holds (kv_heads, block_size, padded_dim) elements, the same for keys and values, so that the tokens of one head
// in one block are contiguous. Dims from head_dim on are zero. Byte offsets are 64-bit throughout. A block may contain
// anything until it is written, so attention must read only the positions that a row sees.
//
// Elements are of the layout's activation type, or E4M3 (f8.cuh). With E4M3, scales (kv_heads, block_size) f32 follow
// the elements of the block, so those of one head are contiguous too: 16 tokens are 16 * padded_dim bytes of elements
// and 64 bytes of scales. Blocks begin at multiples of 64 bytes, so every load of 16 bytes is aligned.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/types.h"

namespace mr::cuda {

// Returns the least head dim that attention is compiled for (32, 64, 80, 96, 128, 256, 512) and that holds head_dim; 0
// above 512.
constexpr int32_t pad_head_dim(int32_t head_dim) {
  for (const int32_t dim : {32, 64, 80, 96, 128, 256, 512})
    if (head_dim >= 1 && head_dim <= dim) return dim;
  return 0;
}

enum class Kv : int32_t {
  kAct = 0,  // the layout's activation type
  kF8 = 1,   // E4M3, one f32 scale for each head of each token
};

struct KvLayout {
  Act act;
  int32_t block_size;  // 16 or 32 tokens
  int32_t kv_heads;
  int32_t head_dim;    // 1 .. 512
  int32_t padded_dim;  // pad_head_dim(head_dim)
  Kv kv = Kv::kAct;

  __host__ __device__ int64_t head_elements() const { return static_cast<int64_t>(block_size) * padded_dim; }
  __host__ __device__ int64_t block_elements() const { return head_elements() * kv_heads; }
  // Bytes of a block of keys, or values, of a layer.
  __host__ __device__ int64_t block_bytes() const {
    return kv == Kv::kF8 ? block_elements() + static_cast<int64_t>(kv_heads) * block_size * static_cast<int64_t>(sizeof(float))
                         : block_elements() * static_cast<int64_t>(kActBytes);
  }
  // For Kv::kF8: bytes from block 0 to the elements, and to the scale, of a head of a token.
  __host__ __device__ int64_t f8_at(int64_t block, int32_t head, int32_t token) const {
    return block * block_bytes() + head * head_elements() + static_cast<int64_t>(token) * padded_dim;
  }
  __host__ __device__ int64_t f8_scale_at(int64_t block, int32_t head, int32_t token) const {
    return block * block_bytes() + block_elements() +
           (static_cast<int64_t>(head) * block_size + token) * static_cast<int64_t>(sizeof(float));
  }
};

}  // namespace mr::cuda
