// gemv_async: the decode class's kernel for tiles of one or of eight tokens; see gemm.h for the contract.
//
// A block processes one tile of `panels` panels of 16 rows after another, and each of its 8 warps has one of the 8
// split-K slices. A warp streams the units of its slice, and the tokens', by cp.async through a pipeline of shared
// memory stages of its own, `units` units to a stage. No other warp reads them, so no block barrier is needed, and the
// pipeline is not drained between tiles. Weights bypass L1. The 8 slices are added as a balanced tree through shared
// memory. Of a pair, gate and up are the two panels of a tile. A GEMV is bound by memory: what matters is that every
// warp always has loads in flight.
#pragma once

#include "kernels/gemm/gemv_async_pipeline.cuh"
#include "kernels/gemm/gemv_registers.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct GemvAsyncBlock {
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using Layout = typename Pipeline::Layout;
  using Mma = GemvAsyncMma<T, A, S>;

  const GemvParams& p;
  GemvTile<A, S> tile;
  const Pipeline pipeline;

  // Writes the normed row, and zeros after it up to whole units. It waits for the kernel before; the weights of the
  // first stages must already have been requested.
  __device__ __forceinline__ void norm_row() const {
    static_assert(norm_warps(kMostNormed) <= kSlices, "a row is normed by the warps of one block");
    const int32_t warp = tile.warp, lane = tile.lane, thread = warp * 32 + lane;
    const int32_t warps = norm_warps(p.cols), threads = warps * 32, groups = p.cols / 4;
    float* const scratch = tile.partial_sums;
    float4 weight[kNormKept], x[kNormKept];
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) weight[k] = reinterpret_cast<const float4*>(p.norm.weight)[i];
    }
    grid_wait();
    grid_trigger();
    float sum = 0;
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp >= warps || i >= groups) continue;
      x[k] = __ldcg(reinterpret_cast<const float4*>(p.norm.x) + i);
      sum = norm_square(x[k], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    sum = scratch[0];
    for (int32_t w = 1; w < warps; ++w) sum += scratch[w];
    const float factor = norm_factor(sum, p.cols, p.norm.eps) * p.norm.scale;
    uint2* const row = reinterpret_cast<uint2*>(pipeline.normed);
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) row[i] = norm_pack<A>(x[k], factor, weight[k]);
    }
    const int32_t padded = min((p.cols + 255) / 256 * 256, kMostNormed) / 4;
    if (groups + thread < padded) row[groups + thread] = make_uint2(0, 0);
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    const int32_t begin = pipeline.unit_begin, end = pipeline.unit_end, first_item = static_cast<int32_t>(blockIdx.x);
    typename Pipeline::Cursor next{begin < end ? first_item : p.items, begin};
    typename Pipeline::WeightFeed weights;
    typename Pipeline::TokenFeed tokens;
    pipeline.aim(weights, next);

    // Weights first: the kernel before may still be writing the tokens.
    typename Pipeline::Cursor ahead = next;
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1 && ahead.item < p.items; ++s) {
      pipeline.fill(weights, ahead, s);
      pipeline.advance(ahead, weights);
    }
    if (tile.ends_heads()) tile.aim_heads(first_item, true);
    if (pipeline.norms()) {
      norm_row();
    } else {
      grid_wait();
      grid_trigger();
    }
    pipeline.aim(tokens, next);
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      if (next.item < p.items) {
        if (!pipeline.norms()) pipeline.fill(tokens, next, s);
        pipeline.advance(next, tokens);
      }
      copies_commit();
    }

    const Mma mma{pipeline};
    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      typename Mma::Sums acc = {};
      typename Mma::Group group;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; unit += S::units) {
        copies_wait<Layout::stages - 2>();
        __syncwarp();
        if (next.item < p.items) {
          pipeline.fill(weights, next, free_stage);
          if (!pipeline.norms()) pipeline.fill(tokens, next, free_stage);
          pipeline.advance(next, weights, tokens);
        }
        copies_commit();
        mma.multiply(acc, group, stage, unit);
        free_stage = stage;
        stage = stage + 1 == Layout::stages ? 0 : stage + 1;
      }
      float* const sums = tile.partial_sums + buffer * S::reduction;
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) tile.put(acc[r], r, sums);
      tile.finish(item, sums);
      if (tile.ends_heads()) tile.aim_heads(item + p.item_stride, false);
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) gemv_async(const __grid_constant__ GemvParams p) {
  using Layout = GemvAsyncLayout<T, A, S, kGemvSharedKiB>;
  uint8_t* const stage_memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint64_t policy = p.token_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  GemvAsyncBlock<T, A, S> block{p,
                                {p, reinterpret_cast<float*>(stage_memory + Layout::partial_sums_at), warp, lane},
                                {p, warp, lane, shared_address(stage_memory), stage_memory + Layout::tokens_at, policy}};
  block.run();
}

template <int32_t T, class A, class S>
GemvKernel gemv_async_kernel() {
  return {reinterpret_cast<const void*>(&gemv_async<T, A, S>),
          [](int32_t capability) {
            return gemv_shared_bytes(capability, [](auto room) { return GemvAsyncLayout<T, A, S, decltype(room)::value>::bytes; });
          },
          S::threads, S::panels, S::tokens};
}

// Picks the shape with the most units in a stage, up to `units`, whose pipeline has two stages if two blocks share 228
// KiB. With one token the pipeline must fit every device; F32 needs more than some have.
template <int32_t T, class A, int32_t panels, int32_t tokens, int32_t units, int32_t blocks>
GemvKernel fitting() {
  using S = GemvShape<panels, tokens, units, blocks>;
  constexpr bool everywhere = tokens > 1 || T == kF32 || GemvAsyncLayout<T, A, S, 100>::alone >= 2;
  if constexpr (GemvAsyncLayout<T, A, S, 228>::many >= 2 && everywhere) {
    return gemv_async_kernel<T, A, S>();
  } else {
    static_assert(units > 1, "the rings do not fit");
    return fitting<T, A, panels, tokens, units / 2, blocks>();
  }
}

template <int32_t T, class A>
GemvKernel gemv_kernel_for(GemvForm form) {
  constexpr bool number = Format<T>::is_float, folds = kFolds<T>;
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = number ? 1 : 4;
  // Where there is always wgmma, skinny kernels take two tokens and more of float weights of the activation type (few() of gemm.cu).
  constexpr bool several = MR_HOPPER != 2 || T != (std::is_same_v<A, __half> ? kF16 : kBF16);
  switch (form) {
    case GemvForm::kSingle1: return fitting<T, A, 1, 1, number ? 2 : 4, blocks>();
    case GemvForm::kPair1: return fitting<T, A, 2, 1, Format<T>::superblock ? 2 : most, blocks>();
    case GemvForm::kDouble1:
      if constexpr (T == kQ4_K) return fitting<T, A, 2, 1, 4, 2>();  // Q5_K would spill
      break;
    case GemvForm::kSingle8:
      if constexpr (several) return fitting<T, A, 1, 8, most, blocks>();
      break;
    case GemvForm::kPair8:
      if constexpr (several) return fitting<T, A, 2, 8, most, blocks>();
      break;
    case GemvForm::kDouble8:
      if constexpr (folds) return fitting<T, A, 2, 8, 2, 1>();
      break;
    case GemvForm::kRegistersSingle8:
      if constexpr (folds) return gemv_registers_kernel<T, 1>();
      break;
    case GemvForm::kRegistersPair8:
      if constexpr (folds) return gemv_registers_kernel<T, 2>();
      break;
  }
  return {};
}

template <int32_t T>
GemvKernel gemv_kernel(Act act, GemvForm form) {
  return with_multiplied_act<T, GemvKernel>(act, [&](auto element) { return gemv_kernel_for<T, decltype(element)>(form); });
}

}  // namespace mr::cuda
