// prefill_end: what becomes of a tile's sums in the prefill class. Of a pair half of the warps hold the gate's rows, the others the up's.
#pragma once

#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Both approximations are good to 2^-20 where the result is not lost in its rounding.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillEnd {
  using Layout = PrefillLayout<T, rows, tokens>;
  using Sums = float[tokens / 2];
  static constexpr int32_t half_panels = Layout::panels / 2;

  const PrefillParams& p;
  float* pairs;         // Layout::pairs bytes of shared memory
  int32_t panel, lane;  // panel: of the tile, this warp's

  // This warp's panel of a tile, which may lie past the last.
  __device__ __forceinline__ void finish(const Sums& sums, int32_t tile, int32_t token0) const {
    const int32_t g = lane / 4, t = lane % 4;
    if (p.pair) {
      // Each half of the warps hands the other its sums of half the tokens, a chunk of 32 at a time, and ends those it keeps.
      const int32_t side = panel / half_panels, within = panel % half_panels;
      const int32_t row = (tile * half_panels + within) * kPanelRows + g;
      constexpr int32_t half = tokens / 16, chunk = half < 4 ? half : 4;  // in eights of tokens
      const int32_t at = (within * kPanelRows + g) * Layout::pair_stride + t * 2;
      float* give = pairs + side * Layout::pair_floats + at;
      const float* take = pairs + (1 - side) * Layout::pair_floats + at;
      if (side == 0) end_half<true, half, chunk>(sums, give, take, row, token0 + t * 2);
      else end_half<false, half, chunk>(sums, give, take, row, token0 + t * 2);
      return;
    }
    if (tile >= p.tiles) return;
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const int32_t row = (within * Layout::panels + panel) * kPanelRows + g;
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct>(target, sums, row, token0 + t * 2);
      case ProductEnd::kSwiGLU: return;
    }
  }

  // Rows row and row + 8, of every 8 tokens from `token` on two. What is added to is read for up to 32 elements at a time.
  template <ProductEnd kind>
  __device__ __forceinline__ void end_rows(const DecodeTarget& target, const Sums& sums, int32_t row, int32_t token) const {
    const bool has[2] = {row < target.rows, row + 8 < target.rows};
    float bias[2] = {0, 0};
    if (target.bias != nullptr) {
      if (has[0]) bias[0] = target.bias[row];
      if (has[1]) bias[1] = target.bias[row + 8];
    }
    constexpr int32_t together = tokens < 64 ? tokens / 8 : 8;
#pragma unroll
    for (int32_t n0 = 0; n0 < tokens / 8; n0 += together) {
      float y[together][4];
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          y[n][i] = sums[(n0 + n) * 4 + i] * p.x_scale + bias[i / 2];
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if constexpr (kind == ProductEnd::kAddF32) {
            if (has[i / 2] && at < p.tokens) y[n][i] += static_cast<const float*>(target.out)[at * target.out_stride + row + i / 2 * 8];
          }
        }
      }
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if (!has[i / 2] || at >= p.tokens) continue;
          const int64_t place = at * target.out_stride + row + i / 2 * 8;
          if constexpr (kind == ProductEnd::kStoreAct) static_cast<A*>(target.out)[place] = A(y[n][i]);
          else static_cast<float*>(target.out)[place] = y[n][i];
        }
      }
    }
  }

  // The gate's warps keep the first half of the tokens.
  template <bool gate, int32_t half, int32_t chunk>
  __device__ __forceinline__ void end_half(const Sums& sums, float* give, const float* take, int32_t row, int32_t token) const {
    constexpr int32_t kept = gate ? 0 : half, given = gate ? half : 0;
    const DecodeTarget& target = p.targets[0];
    float bias[2][2] = {};
    for (int32_t i = 0; i < 2; ++i) {
      for (int32_t r = 0; r < 2; ++r) {
        if (p.targets[i].bias != nullptr && row + r * 8 < target.rows) bias[i][r] = p.targets[i].bias[row + r * 8];
      }
    }
#pragma unroll
    for (int32_t n0 = 0; n0 < half; n0 += chunk) {
#pragma unroll
      for (int32_t n = 0; n < chunk; ++n) {
        const int32_t from = (given + n0 + n) * 4;
        *reinterpret_cast<float2*>(give + n * 8) = make_float2(sums[from], sums[from + 1]);
        *reinterpret_cast<float2*>(give + 8 * Layout::pair_stride + n * 8) = make_float2(sums[from + 2], sums[from + 3]);
      }
      named_barrier(1, Layout::warps * 32);
#pragma unroll
      for (int32_t n = 0; n < chunk; ++n) {
        const float2 low = *reinterpret_cast<const float2*>(take + n * 8);
        const float2 high = *reinterpret_cast<const float2*>(take + 8 * Layout::pair_stride + n * 8);
        const float other[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float own = sums[(kept + n0 + n) * 4 + i];
          const float y0 = (gate ? own : other[i]) * p.x_scale + bias[0][i / 2];
          const float y1 = (gate ? other[i] : own) * p.x_scale + bias[1][i / 2];
          const int32_t at = token + (kept + n0 + n) * 8 + i % 2;
          if (row + i / 2 * 8 < target.rows && at < p.tokens) {
            static_cast<A*>(target.out)[at * target.out_stride + row + i / 2 * 8] =
                A(silu(y0) * y1 * p.pair_share);
          }
        }
      }
      named_barrier(1, Layout::warps * 32);
    }
  }
};

#endif

}  // namespace mr::cuda
