// attention/decode_step: the matrix products of steps of decode attention: 16 keys or values of one warp by 8 query
// heads.
//
// 8-bit elements are widened on their way from shared memory into fragments. Then the rows g and g + 8 of a fragment of
// values are the neighbouring dims 2 g and 2 g + 1, because these are the two elements of a transposed pair.
#pragma once

#include "kernels/attention/decode_load.cuh"

namespace mr::cuda::decode {

// First dim, of a fragment of 16, that lane 4 g + t has in out[m][0]; out[m][2] has the one kNextDim further.
template <bool kF8>
__device__ __forceinline__ int first_dim(int g) { return kF8 ? 2 * g : g; }
template <bool kF8>
constexpr int kNextDim = kF8 ? 1 : 8;

// Loads the fragment of keys for the dims [16 k, +16).
template <class T, int kDim, bool kF8>
__device__ __forceinline__ void load_keys(uint32_t (&a)[4], uint32_t keys, int k, int lane) {
  constexpr int kRow = kLoadedRow<kDim, kF8>;
  if constexpr (kF8) {
    const uint32_t at = keys + lane / 4 * kRow + lane % 4 * 2 + k * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = WideF8<T>::pair(__byte_perm(load_shared2(at + i % 2 * 8 * kRow + i / 2 * 8), 0, 0x1404));
  } else {
    load_matrices(a, keys + lane % 16 * kRow + lane / 16 * 16 + k * 32);
  }
}

// scores (16 keys x 8 heads) of kTogether steps, interleaved and each in two chains, so that products hide each other's
// latency.
template <class T, int kDim, bool kF8, int kTogether>
__device__ __forceinline__ void score_keys(const Queries<T, kDim>& queries, const Room<kDim, kF8, kTogether>& room, int lane,
                                           float (&scores)[kTogether][4]) {
  float odd[kTogether][4];
#pragma unroll
  for (int j = 0; j < kTogether; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = odd[j][i] = 0;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const uint2 q = queries.fragment(k, lane);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      uint32_t a[4];
      load_keys<T, kDim, kF8>(a, room.keys_of(j), k, lane);
      mma16816<T>(k % 2 == 0 ? scores[j] : odd[j], a, q.x, q.y);
    }
  }
#pragma unroll
  for (int j = 0; j < kTogether; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] += odd[j][i];
}

// out (kDim x 8 heads) += values^T (kDim x 16) * weights (16 keys x 8 heads).
template <class T, int kDim, bool kF8>
__device__ __forceinline__ void weigh_values(uint32_t w0, uint32_t w1, uint32_t values, int lane, float (&out)[kDim / 16][4]) {
  constexpr int kRow = kLoadedRow<kDim, kF8>;
  if constexpr (kF8) {
    // The keys 0 .. 7 and 8 .. 15 of 16 dims, and of the next 16.
    const uint32_t at = values + lane % 16 * kRow, next = lane / 16 * 16;
#pragma unroll
    for (int m = 0; m < kDim / 16; m += 2) {
      constexpr int kLast = kDim / 16 - 1;
      uint32_t pairs[4];
      load_matrices_transposed(pairs, at + m * 16 + (m == kLast ? 0 : next));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (m + i > kLast) break;
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = WideF8<T>::pair(__byte_perm(pairs[2 * i + r / 2], 0, r % 2 == 0 ? 0x2404 : 0x3414));
        mma16816<T>(out[m + i], a, w0, w1);
      }
    }
  } else {
    const uint32_t at = values + (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < kDim / 16; ++m) {
      uint32_t a[4];
      load_matrices_transposed(a, at + m * 32);
      mma16816<T>(out[m], a, w0, w1);
    }
  }
}

__device__ __forceinline__ float column_max(float x) {  // over the lanes of equal t
  for (int lane = 4; lane < 32; lane *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
  for (int lane = 4; lane < 32; lane *= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

}  // namespace mr::cuda::decode
