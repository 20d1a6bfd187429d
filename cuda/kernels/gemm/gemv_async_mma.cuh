// gemv_async_mma: multiplies a warp's stages by mma.m16n8k16.
#pragma once

#include "kernels/gemm/gemv_async_pipeline.cuh"
#include "kernels/gemm/mxfp4_unit.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct GemvAsyncMma {
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using E = typename Pipeline::E;
  using Layout = typename Pipeline::Layout;
  using Split = typename Pipeline::Split;
  static constexpr WeightFormat f = Pipeline::f;

  const Pipeline& pipeline;
  const int32_t lane = pipeline.lane;

  using Sums = float[S::panels][4];

  // Group is the state from a group's first unit to its last.
  struct Group {
    std::conditional_t<kFolds<T>, FoldedHeader, GroupHeader<T>> headers[S::panels];
    Sums products;     // products and inputs are used only if scales fold
    InputSums inputs;
  };

  // Adds the products of a stage's units to acc.
  __device__ __forceinline__ void multiply(Sums& acc, Group& group, int32_t stage, int32_t unit) const {
    const uint32_t weights = pipeline.weights_in(stage), tokens = pipeline.tokens_at(stage, unit);
    if (Layout::grouped && unit % f.units == 0) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) group.headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
    }
    if constexpr (kFolds<T>) {
      multiply_folded(acc, group, weights, tokens, unit);
    } else {
#pragma unroll
      for (int32_t u = 0; u < S::units; ++u) {
        if (u > 0 && !Layout::grouped && unit + u >= pipeline.unit_end) break;
        multiply_unit(acc, group.headers, weights, tokens + u * kUnitCols * 2, u);
      }
    }
  }

  // Unit u of the stage: float weights, or quantised ones that are rounded to f16. A unit of MXFP4 is unpacked as a whole.
  __device__ __forceinline__ void multiply_unit(Sums& acc, const GroupHeader<T> (&headers)[S::panels], uint32_t weights, uint32_t tokens,
                                                int32_t u) const {
    if constexpr (T == kMXFP4) {
      uint32_t b[2][4];
      load_matrices(b[0], tokens);
      load_matrices(b[1], tokens + 64);
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        uint32_t a[4][4];
        take_mxfp4_unit(a, panel + Layout::quants_at(u), panel + Layout::scales_at(u), lane);
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) mma16816<E>(acc[r], a[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
      }
    } else {
      std::conditional_t<Format<T>::is_float, NoUnit, RoundedUnit<T>> units[S::panels];
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        units[r].begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), panel + Layout::scales_at(u), headers[r], lane);
      }
      multiply_half<0>(acc, units, weights + Layout::quants_at(u), tokens);
      multiply_half<1>(acc, units, weights + Layout::quants_at(u), tokens + 64);
    }
  }

  struct NoUnit {
    __device__ __forceinline__ void begin(uint32_t, uint32_t, uint32_t, const GroupHeader<T>&, int32_t) {}
  };

  // Inputs [32 * half, 32 * half + 32) of a unit; `quants` is the address of its first panel's quants, `tokens` of the inputs.
  template <int32_t half, class Unit>
  __device__ __forceinline__ void multiply_half(Sums& acc, Unit (&units)[S::panels], uint32_t quants, uint32_t tokens) const {
    uint32_t b[4];
    load_matrices(b, tokens);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      uint32_t a[2][Split::weights][4];
      if constexpr (Format<T>::is_float) {
#pragma unroll
        for (int32_t s = 0; s < 2; ++s) load_terms<T>(a[s], quants + r * Layout::panel_stage, half * 2 + s, lane);
      } else {
        units[r].template take<half * 2>(a[0][0]);
        units[r].template take<half * 2 + 1>(a[1][0]);
      }
      product(acc[r], a[0], b[0], b[1]);
      product(acc[r], a[1], b[2], b[3]);
    }
  }

  __device__ __forceinline__ static void product(float (&acc)[4], const uint32_t (&a)[Split::weights][4], uint32_t b0, uint32_t b1) {
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

  __device__ __forceinline__ void multiply_folded(Sums& acc, Group& group, uint32_t weights, uint32_t tokens, int32_t unit) const {
    static_assert(S::units == 2 || S::units == 4, "scales of half a group are found without an index");
    const bool upper = S::units == 2 && unit % f.units != 0;  // second half of the group
    if (!upper) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
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
      UnitQuants<T> quants;
      quants.begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
      uint32_t a[4][4];
      folded_unit<T, u>(group.headers[r], quants, upper, a);
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
        mma16816<E>(group.products[r], a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
      }
    }
  }
};

}  // namespace mr::cuda
