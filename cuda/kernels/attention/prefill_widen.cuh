// attention/prefill_widen: widens KV blocks of an 8-bit cache to the layout's type. prefill_fetch_f8.cuh uses its conversions.
//
// A block of prefill_wgmma reads all keys that its rows see, and so does the block of every other tile of a prompt: 128 times for 4096
// tokens and four query heads a KV head. prefill_widen widens the blocks that a step's prompts see once a layer:
//
//   cache    [ elements of 8 bits | scales ]   block by block, by id
//                        |
//   scratch  keys    [ block ][ block ] ...    by span, in order of positions; each as a cache of 16 bits has it
//            values  [ block ][ block ] ...
//
// An element is multiplied by its scale, so that consumers need no scales. A scale is two numbers of the layout's type, hi + lo: one fma
// rounds element * hi + (element * lo, rounded), two instructions for two elements where f32 takes five. The result differs
// from the product by at most 1 + 2^-6 halves of a step, and by 2^-23 more if f16 lacks the exponents for lo.
// A value whose scale is NaN would reach the rows that do not see its token, because a weight of 0 does not cancel a NaN. So it becomes
// 0, and the token's key becomes NaN: its score is NaN in every row that sees it, and masked in all others.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/attention/prefill_params.cuh"
#include "kernels/f8.cuh"
#include "kernels/launch.h"

namespace mr::cuda::prefill {

// Factor is hi and lo of a number by which widened elements are multiplied.
template <class T>
using Factor = typename ActOps<T>::Pair;

template <class T>
__device__ __forceinline__ Factor<T> factor_of(float x) {
  const T hi = ActOps<T>::from(x);
  return Factor<T>{hi, ActOps<T>::from(x - ActOps<T>::to(hi))};
}

template <class T>
__device__ __forceinline__ float bounded_scale(float scale) {
  const float most = std::is_same_v<T, __half> ? 145.0f : scale;  // 448 * 145 is within f16's range
  return fminf(scale, most) * WideF8<T>::kFactor;
}
// Returns the factor of a token's value, and of its key.
template <class T>
__device__ __forceinline__ Factor<T> value_factor(float of_value) {
  return factor_of<T>(isnan(of_value) ? 0.0f : bounded_scale<T>(of_value));
}
template <class T>
__device__ __forceinline__ Factor<T> key_factor(float of_key, float of_value) {
  return factor_of<T>(isnan(of_key) || isnan(of_value) ? NAN : bounded_scale<T>(of_key));
}

// Multiplies 8 widened elements by a factor.
template <class T>
__device__ __forceinline__ uint4 scaled(const uint4& wide, const Factor<T>& factor) {
  const auto product = [&](uint32_t both) {
    Factor<T> pair;
    memcpy(&pair, &both, sizeof pair);
    const Factor<T> rounded = __hfma2(pair, Factor<T>{factor.x, factor.x}, __hmul2(pair, Factor<T>{factor.y, factor.y}));
    memcpy(&both, &rounded, sizeof both);
    return both;
  };
  return make_uint4(product(wide.x), product(wide.y), product(wide.z), product(wide.w));
}

// A block of threads widens this many pieces, of 8 elements each, before the next.
constexpr int32_t kWidenThreads = 256, kWidenPlanes = 2, kWidenTogether = 8 * kWidenThreads;

// Returns the number by which a piece is multiplied to find its row: piece * share >> 16 is piece / row_pieces.
constexpr int32_t row_share_of(int32_t row_pieces) { return (1 << 16) / row_pieces + 1; }
constexpr bool shares_divide() {
  // The first piece of an iteration is not always the first of a row.
  for (const int32_t row_pieces : {8, 10, 12, 16, 32})
    for (int32_t piece = 0; piece < kWidenTogether + kWidenTogether % row_pieces; ++piece)
      if (piece * row_share_of(row_pieces) >> 16 != piece / row_pieces) return false;
  return true;
}
static_assert(shares_divide());

struct WidenParams {
  PrefillWidenArgs args;
  uint4 *keys, *values;           // of the WidePlanes
  int32_t row_pieces, row_share;  // pieces of a row, 8 to 32, and row_share_of them

  WidenParams(const PrefillWidenArgs& of, const WidePlanes& planes)
      : args(of), keys(reinterpret_cast<uint4*>(planes.keys)), values(reinterpret_cast<uint4*>(planes.values)),
        row_pieces(of.layout.padded_dim / 8), row_share(row_share_of(row_pieces)) {}
};

// Widens the keys, or values, of a KV block.
template <class T, bool of_values>
__device__ __forceinline__ void widen_elements(const WidenParams& p, const uint2* from, uint4* to, const float* key_scales,
                                               const float* value_scales, int32_t pieces) {
  constexpr int32_t kTogether = kWidenTogether / kWidenThreads;  // loaded before the first of them is widened
  __shared__ Factor<T> factors[kWidenThreads];  // of the rows of kWidenTogether pieces; a row has at least 8
  const int32_t thread = static_cast<int32_t>(threadIdx.x), rows = pieces / p.row_pieces;
  for (int32_t begin = 0; begin < pieces; begin += kWidenTogether) {
    uint2 elements[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) elements[i] = __ldcg(from + min(begin + i * kWidenThreads + thread, pieces - 1));
    const int32_t first_row = begin / p.row_pieces, row = min(first_row + thread, rows - 1);
    const float of_value = __ldcg(value_scales + row), of_key = of_values ? 0.0f : __ldcg(key_scales + row);
    if (begin > 0) __syncthreads();  // the factors before have been read
    factors[thread] = of_values ? value_factor<T>(of_value) : key_factor<T>(of_key, of_value);
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t piece = begin + i * kWidenThreads + thread;
      if (piece >= pieces) break;
      to[piece] = scaled<T>(widen_f8<T>(elements[i].x, elements[i].y), factors[(piece - first_row * p.row_pieces) * p.row_share >> 16]);
    }
  }
}

// A block of threads writes the keys or the values of a KV block: few blocks of threads have all loads of a short prompt in flight.
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
  const int64_t to = int64_t{block} * pieces;
  if (blockIdx.y == 0) widen_elements<T, false>(p, reinterpret_cast<const uint2*>(keys), p.keys + to, key_scales, value_scales, pieces);
  else widen_elements<T, true>(p, reinterpret_cast<const uint2*>(values), p.values + to, key_scales, value_scales, pieces);
}

}  // namespace mr::cuda::prefill
