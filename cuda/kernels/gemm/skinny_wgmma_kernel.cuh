// skinny_wgmma_kernel: the decode class by wgmma for few tokens; see gemm.h for the contract.
//
// A cluster of two blocks processes tiles of 64 rows by `tokens` tokens. It is bound by the weights' bytes, so K is
// split over the four consumer warpgroups: each has two of the eight slices and a pipeline of its own, which two
// producer threads fill (skinny_wgmma_pipeline.cuh). Of a pair the first half of the rows is the gate's.
// skinny_wgmma_reduction.cuh adds the warpgroups' sums. With kSkinnyMaxTokens a cluster processes a single tile.
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/prefill_wgmma_layout.cuh"
#include "kernels/gemm/skinny_wgmma_folded.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool with_sums>
struct SkinnyBlock {
  using Pipeline = SkinnyPipeline<T, A, tokens, with_sums>;
  using Folded = SkinnyFolded<T, A, tokens, with_sums>;
  using StageCursor = typename Pipeline::StageCursor;
  using Sums = float[tokens / 2];
  static constexpr WeightFormat f = Pipeline::f;

  using Reduction = SkinnyReduction<A, tokens, kSkinnyEndsHeads<tokens, with_sums>>;

  const WgmmaParams& p;
  const Pipeline& pipeline;

  // Makes the fragments of unit u of its group, whose stage is full.
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], GroupHeader<T>& header, uint32_t panel, int32_t u) const {
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) load_fragment(a[step], panel, step, pipeline.lane);
    } else {
      if (u == 0) header.load(panel + f.quants + f.high + f.scales, pipeline.lane);
      RoundedUnit<T> unit;
      unit.begin(panel, panel + f.quants, panel + f.quants + f.high, header, pipeline.lane);
      unit.take_all(a);
    }
  }

  // Adds the products of a slice's `units` units, the first of which begins a group.
  __device__ __forceinline__ void multiply(Sums& acc, StageCursor& cursor, int32_t units) const {
    GroupHeader<T> header;
    multiply_units<A>(pipeline, acc, cursor, units, [&](uint32_t (&a)[4][4], int32_t stage, int32_t unit) {
      load(a, header, pipeline.panel_at(stage), unit % f.units);
    });
  }

  __device__ __forceinline__ void consume(Reduction& reduction) const {
    grid_wait();
    const Folded folded{pipeline};
    typename Folded::Cursors cursors;
    // A tile is finished after the next tile's products, so that the cluster's sums have arrived by then.
    for (int32_t item = pipeline.first_item();; item += p.item_stride) {
      Sums slices[2] = {};
#pragma unroll
      for (int32_t s = 0; s < 2; ++s) {
        if (item >= p.items) break;
        const int32_t slice = pipeline.first_slice() + s, units = pipeline.slice_begin(slice + 1) - pipeline.slice_begin(slice);
        if constexpr (kFolds<T>) folded.multiply(slices[s], cursors, units);
        else multiply(slices[s], cursors.rows, units);
      }
      if (item != pipeline.first_item()) reduction.end(item - p.item_stride);
      if (item >= p.items) return;
#pragma unroll
      for (int32_t i = 0; i < tokens / 2; ++i) slices[0][i] = slices[0][i] + slices[1][i];
      reduction.send(slices[0]);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t tokens, bool with_sums>
__global__ void __launch_bounds__(kWgmmaThreads, skinny_blocks(tokens, kFolds<T>))
    gemm_skinny_wgmma(const __grid_constant__ WgmmaParams p, const __grid_constant__ SkinnyMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  extern __shared__ uint8_t memory[];
  const uint32_t stage_memory = (kept_address(memory) + 1023) & ~1023u;
  SkinnyPipeline<T, A, tokens, with_sums> pipeline{p, maps};
  pipeline.rank = static_cast<int32_t>(cluster_rank());
  pipeline.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // the shuffle makes it uniform for the compiler
  pipeline.lane = static_cast<int32_t>(threadIdx.x) % 32;
  pipeline.group = pipeline.warp < 8 ? pipeline.warp / 4 : pipeline.warp % 2;
  typename SkinnyBlock<T, A, tokens, with_sums>::Reduction reduction{p};
  reduction.memory = stage_memory + 2 * Layout::stage_memory;
  reduction.rank = pipeline.rank;
  reduction.group = pipeline.group;
  reduction.warp = pipeline.warp;
  reduction.lane = pipeline.lane;
  pipeline.exchange = reduction.memory + Layout::reduction;
  reduction.sums_ready = pipeline.exchange + Layout::exchange;
  const uint32_t barriers = reduction.sums_ready + 16;
  pipeline.stage_memory = stage_memory + pipeline.group * Layout::stage_memory;
  pipeline.rows = pipeline.stage_memory + Layout::weight_stages * Layout::weights;
  pipeline.full = barriers + pipeline.group * Layout::group_barriers * 8;
  pipeline.empty = pipeline.full + Layout::row_stages * 8;
  pipeline.full_weights = Layout::folds ? pipeline.empty + Layout::row_stages * 8 : pipeline.full;
  pipeline.empty_weights = Layout::folds ? pipeline.full_weights + Layout::weight_stages * 8 : pipeline.empty;
  pipeline.full_sums = pipeline.empty_weights + Layout::weight_stages * 8;
  pipeline.empty_sums = pipeline.full_sums + 2 * 8;
  if (threadIdx.x % 128 == 0 && threadIdx.x < 256) {
    // If weights and tokens share a pipeline, both producers fill a stage. The four warps of a warpgroup release it.
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(pipeline.full + i * 8, Layout::folds ? 1 : 2);
      barrier_init(pipeline.empty + i * 8, 4);
    }
    for (int32_t i = 0; Layout::folds && i < Layout::weight_stages; ++i) {
      barrier_init(pipeline.full_weights + i * 8, 1);
      barrier_init(pipeline.empty_weights + i * 8, 4);
    }
    for (int32_t i = 0; with_sums && i < 2; ++i) {
      barrier_init(pipeline.full_sums + i * 8, 1);
      barrier_init(pipeline.empty_sums + i * 8, 4);
    }
    // The cluster's warps, and one arrival that announces the bytes.
    if (threadIdx.x == 0) {
      barrier_init(reduction.sums_ready, 8 * kSkinnyCluster + 1);
      barrier_init(reduction.sums_ready + 8, 8 * kSkinnyCluster + 1);
    }
    barrier_init_fence();
  }
  if constexpr (kFolds<T> && !with_sums) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < Layout::exchange; i += kWgmmaThreads * 4) {
      store_shared4(pipeline.exchange + i, 0);
    }
    shared_fence();
  }
  cluster_sync();
  constexpr int32_t kRegisters = Layout::blocks == 2 ? 104 : 232, kSpareRegisters = Layout::blocks == 2 ? 32 : 40;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters, Layout::blocks>);
  if (pipeline.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (elected()) {
      if (pipeline.warp < 10) pipeline.produce_weights();
      else pipeline.produce_tokens();
    }
  } else {
    registers_up<kRegisters>();
    SkinnyBlock<T, A, tokens, with_sums>{p, pipeline}.consume(reduction);
  }
#endif
}

#endif

template <int32_t T, class A, int32_t tokens, bool with_sums = false>
WgmmaKernel skinny_wgmma_kernel_of() {
#if MR_HOPPER
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  return {reinterpret_cast<const void*>(&gemm_skinny_wgmma<T, A, tokens, with_sums>), Layout::bytes, kWgmmaThreads, tokens};
#else
  return {};
#endif
}

template <int32_t T, class A>
WgmmaKernel skinny_wgmma_kernel_for(int32_t form) {
  if constexpr (OperandSplit<T, A>::single) {
    switch (form) {
      case 0:
        if constexpr (Format<T>::is_float || T == kQ8_0) return skinny_wgmma_kernel_of<T, A, 8>();
        break;
      case 1: return skinny_wgmma_kernel_of<T, A, 16>();
      case 2: return skinny_wgmma_kernel_of<T, A, 32>();
      case 3: return skinny_wgmma_kernel_of<T, A, 64>();
    }
    if constexpr (Format<T>::is_float) {
      if (form == kSkinnySingle) return skinny_wgmma_kernel_of<T, A, kSkinnyMaxTokens>();
    }
    if constexpr (kFolds<T>) {
      if (form == kSkinnyWithSums) return skinny_wgmma_kernel_of<T, A, 64, true>();
    }
  }
  return {};
}

template <int32_t T>
WgmmaKernel skinny_wgmma_kernel(Act act, int32_t form) {
  return with_multiplied_act<T, WgmmaKernel>(act, [&](auto element) { return skinny_wgmma_kernel_for<T, decltype(element)>(form); });
}

}  // namespace mr::cuda
