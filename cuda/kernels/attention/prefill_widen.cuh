// attention/prefill_widen: widens KV blocks of an 8-bit cache to the layout's type, and its conversions.
//
// A block of prefill_wgmma reads all keys that its rows see, and so does the block of every other tile of a prompt: 128 times for 4096
// tokens and four query heads a KV head. prefill_widen widens the blocks that a step's prompts see once a layer:
//
//   cache    [ elements of 8 bits | scales ]   block by block, by id
//                        |
//   scratch  keys    [ block ][ block ] ...    by span, in order of positions; each as a cache of 16 bits has it
//            values  [ block ][ block ] ...
//            scales  of head 0 [ block ][ block ] ... of head 1 ...
//
// Keys are widened exactly, and consumers multiply scores by the scales. A value times its scale is rounded once to the layout's type.
// A value whose scale is NaN would reach the rows that do not see its token, because a weight of 0 does not cancel a NaN. So it becomes
// 0, and the scale of the token's key becomes NaN: its score is NaN in every row that sees it, and masked in all others.
#pragma once

#include "kernels/attention/prefill_params.cuh"
#include "kernels/f8.cuh"
#include "kernels/launch.h"

namespace mr::cuda::prefill {

// Returns what the scores of a key are multiplied by.
template <class T>
__device__ __forceinline__ float score_factor(float of_key, float of_value) {
  return (isnan(of_value) ? of_value : of_key) * WideF8<T>::kFactor;
}

// Returns what the widened elements of a value are multiplied by.
template <class T>
__device__ __forceinline__ float value_factor(float scale) {
  const float most = std::is_same_v<T, __half> ? 145.0f : scale;  // 448 * 145 is within f16's range
  return isnan(scale) ? 0.0f : fminf(scale, most) * WideF8<T>::kFactor;
}

// Multiplies 8 widened elements by a value_factor.
template <class T>
__device__ __forceinline__ uint4 scaled_values(const uint4& wide, float factor) {
  const auto scaled = [&](uint32_t both) {
    typename ActOps<T>::Pair pair;
    memcpy(&pair, &both, sizeof pair);
    return ActOps<T>::pack(ActOps<T>::to(pair.x) * factor, ActOps<T>::to(pair.y) * factor);
  };
  return make_uint4(scaled(wide.x), scaled(wide.y), scaled(wide.z), scaled(wide.w));
}

struct WidenParams {
  PrefillWidenArgs args;
  uint4 *keys, *values;  // of the WidePlanes
  float* scales;
  int32_t row_shift;     // log2 of the pieces of a row
};

constexpr int32_t kWidenThreads = 256, kWidenPlanes = 3;

// Widens a KV block's elements of one plane; factor(row) is what those of a row are multiplied by. A piece is 8 elements.
template <class T, bool scaled, class Factor>
__device__ __forceinline__ void widen_elements(const uint2* from, uint4* to, int32_t pieces, const Factor& factor) {
  constexpr int32_t kTogether = 8;  // loaded before the first of them is widened
  for (int32_t begin = static_cast<int32_t>(threadIdx.x); begin < pieces; begin += kTogether * kWidenThreads) {
    uint2 elements[kTogether];
    float factors[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t piece = min(begin + i * kWidenThreads, pieces - 1);
      elements[i] = __ldcg(from + piece);
      factors[i] = factor(piece);
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t piece = begin + i * kWidenThreads;
      if (piece >= pieces) break;
      const uint4 wide = widen_f8<T>(elements[i].x, elements[i].y);
      if constexpr (scaled) to[piece] = scaled_values<T>(wide, value_factor<T>(factors[i]));
      else to[piece] = wide;
    }
  }
}

// A block of threads writes the keys, the values or the scales of a KV block: few blocks of threads have all loads of a short prompt in
// flight.
template <class T>
__global__ void __launch_bounds__(kWidenThreads) widen_blocks(const __grid_constant__ WidenParams p) {
  const KvLayout& layout = p.args.layout;
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  int32_t first = 0;  // the last span that does not begin after the block
  for (int32_t end = p.args.span_count; first + 1 < end;) {
    const int32_t middle = (first + end) / 2;
    (p.args.spans[middle].place <= block ? first : end) = middle;
  }
  const PrefillSpan span = p.args.spans[first];
  const int64_t id = p.args.rows.block_ids[p.args.rows.table[span.row] + span.first + block - span.place];
  const uint8_t* const keys = static_cast<const uint8_t*>(p.args.keys) + layout.f8_at(id, 0, 0);
  const uint8_t* const values = static_cast<const uint8_t*>(p.args.values) + layout.f8_at(id, 0, 0);
  const float* const key_scales = reinterpret_cast<const float*>(keys + layout.block_elements());
  const float* const value_scales = reinterpret_cast<const float*>(values + layout.block_elements());
  const int32_t pieces = static_cast<int32_t>(layout.block_elements() / 8);
  grid_wait();
  grid_trigger();
  if (blockIdx.y == 0) {
    widen_elements<T, false>(reinterpret_cast<const uint2*>(keys), p.keys + int64_t{block} * pieces, pieces, [](int32_t) { return 0.0f; });
  } else if (blockIdx.y == 1) {
    widen_elements<T, true>(reinterpret_cast<const uint2*>(values), p.values + int64_t{block} * pieces, pieces,
                            [&](int32_t piece) { return __ldcg(value_scales + (piece >> p.row_shift)); });
  } else {
    for (int32_t row = static_cast<int32_t>(threadIdx.x); row < layout.kv_heads * layout.block_size; row += kWidenThreads) {
      const int32_t head = row / layout.block_size, token = row % layout.block_size;
      p.scales[(int64_t{head} * p.args.wide.blocks + block) * layout.block_size + token] =
          score_factor<T>(__ldcg(key_scales + row), __ldcg(value_scales + row));
    }
  }
}

}  // namespace mr::cuda::prefill
