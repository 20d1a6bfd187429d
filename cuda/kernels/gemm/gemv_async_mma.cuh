// gemv_async_mma: multiplies a warp's stages by mma.m16n8k16.
#pragma once

#include "kernels/gemm/gemv_async_pipeline.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct GemvAsyncMma : GemvAsyncPipeline<T, A, S> {
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using typename Pipeline::E;
  using typename Pipeline::Layout;
  using typename Pipeline::Split;
  using Pipeline::f, Pipeline::lane, Pipeline::p, Pipeline::shared, Pipeline::tokens_in, Pipeline::unit_end, Pipeline::warp,
      Pipeline::weights_in;

  // Returns whether the block norms its token.
  __device__ __forceinline__ bool norms() const { return S::tokens == 1 && p.norm.weight != nullptr; }

  using Sums = float[S::panels][4];

  // Group is the state from a group's first unit to its last.
  struct Group {
    std::conditional_t<kFolds<T, E>, FoldedHeader, GroupHeader<T, E>> headers[S::panels];
    Sums products;     // products and inputs are used only if scales fold
    InputSums inputs;
  };

  // Adds the products of a stage's units to acc.
  __device__ __forceinline__ void multiply(Sums& acc, Group& group, int32_t stage, int32_t unit) const {
    const uint32_t weights = weights_in(stage), tokens = tokens_at(stage, unit);
    if constexpr (kFolds<T, E>) return multiply_folded(acc, group, weights, tokens, unit);
    else return multiply_units(acc, group.headers, weights, tokens, unit);
  }

  // Returns where this lane's row of a stage's tokens begins, for load_matrices.
  __device__ __forceinline__ uint32_t tokens_at(int32_t stage, int32_t unit) const {
    const uint32_t row = norms() ? shared + Layout::tokens_at + unit * (kUnitCols * 2)
                                 : tokens_in(stage) + (S::tokens == 1 ? 0 : lane & 7) * Layout::token_row;
    return row + (lane >> 3) * 16;
  }

  __device__ __forceinline__ void multiply_folded(Sums& acc, Group& group, uint32_t weights, uint32_t tokens, int32_t unit) const {
    static_assert(S::units == 2 || S::units == 4, "scales of half a group are found without an index");
    const bool upper = S::units == 2 && unit % f.units != 0;  // second half of the group
    if (!upper) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        group.headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
#pragma unroll
        for (float& c : group.products[r]) c = 0;
      }
      group.inputs.clear();
    }
    multiply_folded_unit<0>(group, weights, tokens, upper);
    multiply_folded_unit<1>(group, weights, tokens, upper);
    if constexpr (S::units == 4) {
      multiply_folded_unit<2>(group, weights, tokens, upper);
      multiply_folded_unit<3>(group, weights, tokens, upper);
    }
    if (S::units == 2 && !upper) return;
    uint32_t input_sums[3];
    group.inputs.split(input_sums);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) group.headers[r].add_with_mins(acc[r], group.products[r], input_sums);
  }

  // Unit u of the stage; upper: it is in the second half of the group.
  template <int32_t u>
  __device__ __forceinline__ void multiply_folded_unit(Group& group, uint32_t weights, uint32_t tokens, bool upper) const {
    uint32_t x[2][4];
    load_matrices(x[0], tokens + u * kUnitCols * 2);
    load_matrices(x[1], tokens + u * kUnitCols * 2 + 64);
    group.inputs.add(x[0], u * 2 + upper * 4, lane);
    group.inputs.add(x[1], u * 2 + 1 + upper * 4, lane);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint32_t panel = weights + r * Layout::panel_stage;
      UnitQuants<T, E, 1> quants;
      quants.begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
      uint32_t a[4][4];
      folded_unit<T, u>(group.headers[r], quants, upper, a);
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
        mma16816<E>(group.products[r], a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
      }
    }
  }

  template <class Header>
  __device__ __forceinline__ void multiply_units(Sums& acc, Header (&headers)[S::panels], uint32_t weights, uint32_t tokens,
                                                 int32_t unit) const {
    const uint32_t exchange = shared + Layout::exchange_at + warp * Layout::warp_exchange;
    if constexpr (Layout::grouped) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        if (unit % f.units == 0) headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
      }
    }
#pragma unroll
    for (int32_t u = 0; u < S::units; ++u) {
      if (u > 0 && !Layout::grouped && unit + u >= unit_end) break;
      constexpr int32_t published = Layout::published;
      if constexpr (Layout::publishes) {
        if (u % published == 0) {
          if (u > 0) __syncwarp();
#pragma unroll
          for (int32_t r = 0; r < S::panels; ++r) {
            headers[r].template publish<published>(exchange + r * published * 256, unit % f.units + u, lane);
          }
          __syncwarp();
        }
      }
      UnitQuants<T, E, Split::weights> quants[S::panels];
      UnitScales<T, E> scales[S::panels];
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        quants[r].begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
        quants[r].use(headers[r]);
        scales[r].load(Layout::publishes ? exchange + (r * published + u % published) * 256 : panel + Layout::scales_at(u), headers[r], lane);
      }
      multiply_half<0>(acc, scales, quants, tokens + u * kUnitCols * 2);
      multiply_half<1>(acc, scales, quants, tokens + u * kUnitCols * 2 + 64);
    }
  }

  // Inputs [32 * half, 32 * half + 32) of a unit; `tokens` is their address.
  template <int32_t half>
  __device__ __forceinline__ void multiply_half(Sums& acc, const UnitScales<T, E> (&scales)[S::panels],
                                                UnitQuants<T, E, Split::weights> (&quants)[S::panels], uint32_t tokens) const {
    uint32_t b[4];
    load_matrices(b, tokens);
    constexpr bool sixteens = Format<T>::sixteens;
    float sums[2][4] = {};  // of 32 inputs, or of 16 each
    if constexpr (Format<T>::has_min) {
      constexpr uint32_t one = twice(std::is_same_v<E, __half> ? 0x3c00u : 0x3f80u);
      constexpr uint32_t ones[4] = {one, one, one, one};
      mma16816<E>(sums[0], ones, b[0], b[1]);
      mma16816<E>(sums[sixteens ? 1 : 0], ones, b[2], b[3]);
    }
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      uint32_t a[2][Split::weights][4];
      quants[r].template take<half * 2>(a[0]);
      quants[r].template take<half * 2 + 1>(a[1]);
      if constexpr (Format<T>::is_float) {
        product(acc[r], a[0], b[0], b[1]);
        product(acc[r], a[1], b[2], b[3]);
      } else if constexpr (sixteens) {
#pragma unroll
        for (int32_t s = 0; s < 2; ++s) {
          float c[4] = {0, 0, 0, 0};
          mma16816<E>(c, a[s][0], b[s * 2], b[s * 2 + 1]);
          add_scaled(acc[r], c, scales[r].scale[0][half * 2 + s], scales[r].scale[1][half * 2 + s]);
          if constexpr (Format<T>::has_min) add_scaled(acc[r], sums[s], scales[r].min[0][half * 2 + s], scales[r].min[1][half * 2 + s]);
        }
      } else {
        float c[4] = {0, 0, 0, 0};
        mma16816<E>(c, a[0][0], b[0], b[1]);
        mma16816<E>(c, a[1][0], b[2], b[3]);
        add_scaled(acc[r], c, scales[r].scale[0][half], scales[r].scale[1][half]);
        if constexpr (Format<T>::has_min) add_scaled(acc[r], sums[0], scales[r].min[0][half], scales[r].min[1][half]);
      }
    }
  }

  __device__ __forceinline__ static void add_scaled(float (&acc)[4], const float (&c)[4], float row_g, float row_g8) {
    acc[0] = fmaf(row_g, c[0], acc[0]);
    acc[1] = fmaf(row_g, c[1], acc[1]);
    acc[2] = fmaf(row_g8, c[2], acc[2]);
    acc[3] = fmaf(row_g8, c[3], acc[3]);
  }

  __device__ __forceinline__ static void product(float (&acc)[4], const uint32_t (&a)[Split::weights][4], uint32_t b0,
                                                 uint32_t b1) {
    if constexpr (Split::inputs == 1) {
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], b0, b1);
    } else {
      uint32_t head[2], tail[2];
      split_half2(b0, head[0], tail[0]);
      split_half2(b1, head[1], tail[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], head[0], head[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], tail[0], tail[1]);
    }
  }
};

}  // namespace mr::cuda
