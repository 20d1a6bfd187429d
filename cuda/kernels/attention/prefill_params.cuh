// attention/prefill_params: the parameters of every prefill attention kernel, and where results are written: partial
// ones to the workspace, those of a row's last piece to the output.
#pragma once

#include "kernels/act.cuh"
#include "kernels/attention/attention.h"
#include "kernels/attention/softmax.cuh"

namespace mr::cuda::prefill {

// A block weighs at most 256 dims of the values: the sums of more would not fit its registers. A wider head has a block for
// each half of the values' dims, and both compute the same scores. That is half as many products again as one block with
// all sums would need, but no exchange between blocks.
__host__ __device__ constexpr int32_t halves_of(int32_t padded_dim) { return padded_dim <= 256 ? 1 : 2; }
template <int kDim>
constexpr int kHalves = halves_of(kDim);
template <int kDim>
constexpr int kValueDims = kDim / kHalves<kDim>;

// WidePlanes is where a WideCache has widened blocks: keys and values times their scales, as a cache of the layout's type has them.
struct WidePlanes {
  uint8_t *keys, *values;

  WidePlanes(const KvLayout& layout, const WideCache& cache)
      : keys(static_cast<uint8_t*>(cache.memory)), values(keys + cache.blocks * plane_bytes(layout)) {}
  // Bytes that a block has of each plane of elements.
  static int64_t plane_bytes(const KvLayout& layout) { return layout.block_elements() * static_cast<int64_t>(kActBytes); }
};

struct Params {
  PrefillAttentionArgs args;
  float scale_log2, cap_scale;       // see ScoreRule
  int32_t group, tile_heads, tiles;  // query heads a kv head, a tile; tiles a kv head
  int32_t tile_share;                // row * tile_share >> 16 is row / tile_heads for the rows of a tile: no division
  // Workspace: partial results by slot and query head.
  int32_t slot_dims;  // of a head: those that its kernel computes
  float* values;      // (capacity, heads, slot_dims): sum of weighted values, dims in the order of quads
  float2* parts;      // (capacity, heads, halves): top and sum of a Part, equal in both halves

  __host__ __device__ int32_t columns() const { return args.common.layout.kv_heads * tiles; }
};

// Partial results are stored in quads, four neighbouring floats: quad 4 k + t holds what a lane with that t has of the
// dims [16 k, +16), namely 16 k + 2 t, + 1, + 8 and + 9, so that a lane writes 16 bytes at once.
__device__ __forceinline__ int32_t quad_dim(int32_t quad) { return quad / 4 * 16 + quad % 4 * 2; }

// Returns the output of a head of a row; store_pair writes its dims d and d + 1 below `dim`. Heads begin at even
// elements if dim is even.
__device__ __forceinline__ uint16_t* output_of(const AttentionArgs& c, int64_t row, int32_t head) {
  return static_cast<uint16_t*>(c.out) + row * c.out_stride + static_cast<int64_t>(head) * c.layout.head_dim;
}
__device__ __forceinline__ void store_pair(Act act, uint16_t* to, int32_t d, int32_t dim, float x, float y) {
  const uint32_t bits = act_bits(act, x, y);
  if (dim % 2 == 0) {
    if (d < dim) *reinterpret_cast<uint32_t*>(to + d) = bits;
  } else {
    if (d < dim) to[d] = static_cast<uint16_t>(bits);
    if (d + 1 < dim) to[d + 1] = static_cast<uint16_t>(bits >> 16);
  }
}

}  // namespace mr::cuda::prefill
